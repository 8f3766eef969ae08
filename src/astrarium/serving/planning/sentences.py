"""A plan is told in sentences: what was asked and answered, what is missing, what breaks first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from astrarium.core.quantities import counted
from astrarium.serving.path_load import not_counted, unmeasured
from astrarium.serving.planning.mean_times import length_mixes

if TYPE_CHECKING:
    from astrarium.serving.planning.answer import PlanningAnswer
    from astrarium.serving.planning.search import Attempt


def headline(answer: PlanningAnswer) -> Iterator[str]:
    """Return the answer in words."""
    chosen = answer.chosen
    label = answer.choice.label
    target = answer.goals.target
    if chosen is None:
        yield f"{label}: interrupted before there was any plan"
        return
    if answer.interrupted:
        yield f"{label}: interrupted; this is the best plan so far, for {counted(chosen.gpus, 'GPU')}"
    goal = f"{target:.4g}" if target < 0.01 else f"{100 * target:g} %"
    if answer.question.gpus is not None or answer.interrupted:
        yield _verdict(answer, chosen, goal)
    elif answer.fewest is not None:
        yield (
            f"{label}: {_which(chosen)} {'is' if chosen.gpus == 1 else 'are'} enough for every model to "
            f"have {goal} of its requests in time{_below(answer, chosen.gpus)}"
        )
    else:
        most = max((attempt.gpus for attempt in answer.attempts), default=chosen.gpus)
        yield (
            f"{label}: no number of such GPUs up to {most} gives every model {goal} in time; "
            f"this is its plan for {counted(chosen.gpus, 'GPU')}"
        )
    yield from _cluster(answer, chosen)


def _below(answer: PlanningAnswer, gpus: int) -> str:
    tried = {attempt.gpus for attempt in answer.attempts}
    if gpus - 1 in tried:
        return f", {gpus - 1} {'is' if gpus == 2 else 'are'} not"
    return ", and fewer cannot carry the load" if gpus > 1 else ""


def _verdict(answer: PlanningAnswer, chosen: Attempt, goal: str) -> str:
    if chosen.judged is None:
        return f"the plan was not judged yet; its policy expects {chosen.plan.attainment or 0:.2%} in time"
    below = chosen.judged.below(chosen.target)
    overall = f"{chosen.judged.overall.mean:.2%} of all requests are in time on {_which(chosen)}"
    names = ", ".join(chosen.problem.models[place].name for place in chosen.short)
    if below:
        return f"{answer.choice.label}: {overall}; below {goal}: {names}"
    if chosen.short:
        return f"{answer.choice.label}: {overall}, but not for long: there is too little time for {names}"
    return f"{answer.choice.label}: {overall}, and at least {goal} of each model's"


def _cluster(answer: PlanningAnswer, chosen: Attempt) -> Iterator[str]:
    there = answer.scenario.cluster.size
    if chosen.gpus > there:
        more = chosen.gpus - there
        way = f" (-o cluster.gpus={chosen.gpus})" if isinstance(answer.scenario.cluster.gpus, int) else ""
        yield (
            f"the scenario's cluster has {counted(there, 'GPU')}: the plan asks for {more} more like "
            f"{'it' if there == 1 else 'them'}{way}"
        )
    elif chosen.gpus < there:
        free = there - chosen.gpus
        yield f"the scenario's cluster has {counted(there, 'GPU')}: {free} of them would stay free"


def missing_lines(attempt: Attempt) -> Iterator[str]:
    for index, why in sorted(attempt.plan.missing.items()):
        model = attempt.problem.models[index]
        reason = f"It would take: {why}" if model.rate else "Nobody asks for it."
        yield f"{model.name} has no replica. {reason}"


def length_lines(answer: PlanningAnswer) -> Iterator[str]:
    """Say which lengths a plan counts with; its times are means over them."""
    for name, mix in length_mixes(answer.scenario).items():
        padding = f"{mix.padding:.1%} of that work is padding" if mix.padding else "without padding"
        yield (
            f"{name}: a batch takes the mean over the lengths of the workload ({mix.mean:,.1f} on average), "
            f"each batch of like lengths; {padding}"
        )


def growth_line(answer: PlanningAnswer, attempt: Attempt) -> str:
    growth = answer.growth
    if growth is None:
        return ""
    if growth.first is None or growth.breaks is None:
        return f"what breaks first: nothing up to {growth.carries:g} times the load"
    name = attempt.problem.models[growth.first].name
    others = f", and {len(growth.others)} more with it" if growth.others else ""
    if growth.first in attempt.plan.missing:
        return f"what breaks first: {name}{others}, at any load: without a replica nobody answers"
    if growth.carries <= 0:
        return f"what breaks first: even at {growth.breaks:g} times the load, {name}{others}: {growth.why}"
    carried = f"the plan carries {growth.carries:.2f} times the load"
    return f"what breaks first: {carried}; at {growth.breaks:.2f} times it is {name}{others}: {growth.why}"


def path_line(answer: PlanningAnswer) -> str:
    """Say how far the path of calls carries the load, where it breaks before the GPUs do, or is unknown."""
    names = unmeasured(answer.scenario, answer.rates)
    if names:
        return not_counted(names)
    path = answer.path
    if path is None or (path >= 1 and (answer.growth is None or path >= answer.growth.carries)):
        return ""
    if path >= 1:
        return f"before that breaks the path of calls: one server's carries {path:.2f} times the load"
    rate = sum(answer.rates.values())
    return (
        f"the path of calls of one server carries {path * rate:,.0f} of these {rate:,.0f} requests/s: "
        f"divide the models among {math.ceil(1 / path)} servers"
    )


def tried_line(answer: PlanningAnswer) -> str:
    """Say which sizes were tried, and how the worst model fared."""
    sizes = [
        f"{attempt.gpus} ({attempt.judged.models[attempt.judged.worst].mean:.1%})"
        for attempt in sorted(answer.attempts, key=lambda attempt: attempt.gpus)
        if attempt.judged is not None
    ]
    return f"GPUs tried, with what the worst model got in time: {', '.join(sizes)}" if len(sizes) > 1 else ""


def rivals_missing(answer: PlanningAnswer) -> Iterator[str]:
    for rival in answer.rivals:
        missing = rival.same.plan.missing
        if missing:
            names = [rival.same.problem.models[index].name for index in sorted(missing)]
            why = missing[min(missing)]
            yield f"{rival.choice.label} places no {', '.join(names)}. {names[0]} would take: {why}"


def _which(attempt: Attempt) -> str:
    """Say how many GPUs an attempt has, with their kinds where they are unequal."""
    kinds = Counter(gpu.kind for gpu in attempt.problem.gpus)
    by_kind = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    unequal = attempt.speeds is not None and attempt.speeds.unequal
    return f"{counted(attempt.gpus, 'GPU')} ({by_kind})" if unequal else counted(attempt.gpus, "GPU")
