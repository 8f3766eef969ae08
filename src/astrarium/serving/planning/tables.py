"""Tables show a plan on a terminal: the replicas of each GPU and why, what each model gets, and rivals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from astrarium.core.units import to_ms

if TYPE_CHECKING:
    from astrarium.placement.plan import Replica
    from astrarium.placement.problem import Problem
    from astrarium.serving.planning.answer import PlanningAnswer
    from astrarium.serving.planning.growth import Growth
    from astrarium.serving.planning.load import Attained
    from astrarium.serving.planning.search import Attempt
    from astrarium.serving.planning.use import GpuUse, ReplicaUse


# A plan in sentences: what was asked and answered, what is missing, what breaks first.


def headline(answer: PlanningAnswer) -> Iterator[str]:
    """Return the answer in words."""
    chosen, label, target = answer.chosen, answer.choice.label, answer.goals.target
    if chosen is None:
        yield f"{label}: interrupted before there was any plan"
        return
    if answer.interrupted:
        yield f"{label}: interrupted; this is the best plan so far, for {gpus_told(chosen.gpus)}"
    goal = f"{target:.4g}" if target < 0.01 else f"{100 * target:g} %"
    if answer.question.gpus is not None or answer.interrupted:
        yield _verdict(answer, chosen, goal)
    elif answer.fewest is not None:
        yield (
            f"{label}: {_which(chosen)} {'is' if chosen.gpus == 1 else 'are'} enough for every model to "
            f"have {goal} of its requests in time{_below(answer, chosen.gpus)}"
        )
    else:
        most = max((each.gpus for each in answer.attempts), default=chosen.gpus)
        yield (
            f"{label}: no number of such GPUs up to {most} gives every model {goal} in time; "
            f"this is its plan for {gpus_told(chosen.gpus)}"
        )
    yield from _cluster(answer, chosen)


def _below(answer: PlanningAnswer, gpus: int) -> str:
    tried = {each.gpus for each in answer.attempts}
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
            f"the scenario's cluster has {gpus_told(there)}: the plan asks for {more} more like "
            f"{'it' if there == 1 else 'them'}{way}"
        )
    elif chosen.gpus < there:
        yield f"the scenario's cluster has {gpus_told(there)}: {there - chosen.gpus} of them would stay free"


def missing_lines(attempt: Attempt) -> Iterator[str]:
    for index, why in sorted(attempt.plan.missing.items()):
        model = attempt.problem.models[index]
        told = f"It would take: {why}" if model.rate else "Nobody asks for it."
        yield f"{model.name} has no replica. {told}"


def growth_line(answer: PlanningAnswer, attempt: Attempt) -> str:
    found = answer.growth
    if found is None:
        return ""
    if found.first is None or found.breaks is None:
        return f"what breaks first: nothing up to {found.carries:g} times the load"
    name = attempt.problem.models[found.first].name
    others = f", and {len(found.others)} more with it" if found.others else ""
    if found.first in attempt.plan.missing:
        return f"what breaks first: {name}{others}, at any load: without a replica nobody answers"
    if found.carries <= 0:
        return f"what breaks first: even at {found.breaks:g} times the load, {name}{others}: {found.why}"
    carried = f"the plan carries {found.carries:.2f} times the load"
    return f"what breaks first: {carried}; at {found.breaks:.2f} times it is {name}{others}: {found.why}"


def tried_line(answer: PlanningAnswer) -> str:
    """Say which sizes were tried, and how the worst model fared."""
    told = [
        f"{each.gpus} ({each.judged.models[each.judged.worst].mean:.1%})"
        for each in sorted(answer.attempts, key=lambda each: each.gpus)
        if each.judged is not None
    ]
    return f"GPUs tried, with what the worst model got in time: {', '.join(told)}" if len(told) > 1 else ""


def rivals_missing(answer: PlanningAnswer) -> Iterator[str]:
    for rival in answer.rivals:
        missing = rival.same.plan.missing
        if missing:
            names = [rival.same.problem.models[index].name for index in sorted(missing)]
            why = missing[min(missing)]
            yield f"{rival.choice.label} places no {', '.join(names)}. {names[0]} would take: {why}"


def line(text: str) -> Text:
    """Return a sentence as text without markup, which the terminal may break anywhere."""
    return Text(text, no_wrap=True, overflow="ignore")


def _which(attempt: Attempt) -> str:
    """Say how many GPUs an attempt has, with their kinds where they are unequal."""
    kinds = Counter(gpu.kind for gpu in attempt.problem.gpus)
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    unequal = attempt.speeds is not None and attempt.speeds.unequal
    return f"{gpus_told(attempt.gpus)} ({told})" if unequal else gpus_told(attempt.gpus)


def gpus_told(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


GIB = 2**30


def placement_table(uses: tuple[GpuUse, ...], problem: Problem) -> Table:
    """Return a row for each replica on each GPU; GPUs with the same replicas and loads stand together."""
    columns = ("memory", "busy", "model", "batch", "share", "shape", "takes", "works", "why")
    table = _table("GPU", *columns)
    for name in ("model", "why"):
        table.columns[columns.index(name) + 1].justify = "left"
    names = {model.index: model.name for model in problem.models}
    explained: set[Replica] = set()
    for _, alike in groupby(uses, key=_alike):
        group = list(alike)
        rows = [_replica_cells(each, names, explained) for each in group[0].replicas]
        explained.update(each.replica for each in group[0].replicas)
        for number, cells in enumerate(rows or [("empty", *[""] * 6)]):
            table.add_row(*(_home(group) if number == 0 else ("", "", "")), *cells)
    _leave_out_empty(table)
    return table


def _alike(use: GpuUse) -> object:
    working = tuple((each.replica, each.memory, f"{each.busy:.2f}") for each in use.replicas)
    return (use.gpu.kind, use.gpu.memory, working)


def _home(group: list[GpuUse]) -> tuple[str, str, str]:
    first, last = group[0], group[-1]
    numbers = str(first.gpu.id) if first is last else f"{first.gpu.id} to {last.gpu.id}"
    memory = f"{_gib(first.memory)} of {_gib(first.gpu.memory)}"
    return f"{numbers} {first.gpu.kind}", memory, f"{first.busy:.0%}"


def _replica_cells(use: ReplicaUse, names: dict[int, str], explained: set[Replica]) -> tuple[str | Text, ...]:
    one = use.replica
    shape = "" if one.shape.gpus == 1 else f"{one.shape} on {', '.join(map(str, one.gpus))}"
    share = "" if one.share >= 1 else f"{one.share:.0%}"
    why = f"as on GPU {one.gpus[0]}" if one in explained else one.why
    size, works = _gib(use.memory), f"{use.busy:.0%}"
    return (Text(names[one.model]), str(one.batch), share, shape, size, works, Text(why))


def _leave_out_empty(table: Table) -> None:
    """Leave out columns that say nothing, so that the table fits a narrow terminal more often."""
    table.columns = [column for column in table.columns if any(column.cells)]


def models_table(answer: PlanningAnswer, attempt: Attempt) -> Table:
    """Return what each model asks for and gets, on requests that the plan was not made with."""
    table = _table("model", "SLO ms", "requests/s", "replicas", "in time", "lowest", "highest", "can grow")
    plan, judged = attempt.plan, attempt.judged
    for place, model in enumerate(attempt.problem.models):
        replicas = len(list(plan.of_model(model.index)))
        got = _attained(judged.models[place] if judged else None, attempt.target)
        room = _room(answer.alone.get(place))
        if not model.rate:
            got, room = ("nobody asks", "", ""), ""
        table.add_row(
            Text(model.name),
            _plain(to_ms(model.slo)),
            f"{model.rate:,.1f}",
            str(replicas or "none"),
            *got,
            room,
        )
    if len(attempt.problem.models) > 1 and judged is not None:
        total = sum(model.rate for model in attempt.problem.models)
        table.add_row(
            "all", "", f"{total:,.1f}", str(len(plan.replicas)), *_attained(judged.overall, 0.0), ""
        )
    _leave_out_empty(table)
    return table


def _room(growth: Growth | None) -> str:
    """Say how far a model can grow alone, the others staying as they are."""
    if growth is None:
        return ""
    return f"{growth.carries:.2f}x" if growth.breaks is not None else f"over {growth.carries:.0f}x"


def _attained(found: Attained | None, target: float) -> tuple[str | Text, str, str]:
    if found is None:
        return ("not judged", "", "")
    style = "" if target == 0 else "green" if found.mean >= target else "red"
    return Text(f"{found.mean:.2%}", style=style), f"{found.low:.2%}", f"{found.high:.2%}"


def against_table(answer: PlanningAnswer) -> Table:
    """Compare policies on as many GPUs and the same requests, and the fewest GPUs that each needs."""
    chosen = answer.chosen
    assert chosen is not None
    title = f"on {gpus_told(chosen.gpus)}"
    table = _table("policy", f"in time, {title}", "lowest", "highest", "worst model", "", "fewest GPUs")
    table.columns[5].justify = "left"
    rows = [(answer.choice.label, chosen, answer.fewest)]
    rows += [(rival.choice.label, rival.same, rival.fewest) for rival in answer.rivals]
    for label, attempt, fewest in rows:
        overall = _attained(attempt.judged.overall if attempt.judged else None, 0.0)
        table.add_row(Text(label), *overall, *_worst(attempt), str(fewest.gpus) if fewest else "not found")
    return table


def _worst(attempt: Attempt) -> tuple[str | Text, str]:
    if attempt.judged is None:
        return "", ""
    worst = attempt.judged.worst
    shown, _, _ = _attained(attempt.judged.models[worst], attempt.target)
    return shown, attempt.problem.models[worst].name


def _plain(number: float) -> str:
    """Write a number with all digits before the point, and few behind it."""
    return f"{number:,.3f}".rstrip("0").rstrip(".")


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"


def _table(first: str, *others: str) -> Table:
    from rich.box import SIMPLE_HEAD

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table
