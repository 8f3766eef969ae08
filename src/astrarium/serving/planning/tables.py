"""Tables show a plan on a terminal: the replicas of each GPU and why, what each model gets, and rivals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from astrarium.core.quantities import GIB, counted, to_ms
from astrarium.run.plots import INK, color_of, margins, picture
from astrarium.run.report import plain_table

if TYPE_CHECKING:
    from astrarium.placement.plan import Replica
    from astrarium.placement.problem import Problem
    from astrarium.serving.planning.answer import PlanningAnswer
    from astrarium.serving.planning.growth import Growth
    from astrarium.serving.planning.load import Attained
    from astrarium.serving.planning.search import Attempt
    from astrarium.serving.planning.use import GpuUse, ReplicaUse


# A plan's picture has one row for each GPU, its replicas as blocks, its memory beside it.


_IDLE = "#f2f2f2"
_HEIGHT = 0.72
_NARROW = 0.07  # of a row: narrower blocks have no room for a name
_MOST_ROWS = 64


def draw_placement(uses: Sequence[GpuUse], names: Sequence[str], path: Path, title: str = "") -> None:
    """Draw the GPUs of a plan, the first only if there are very many; *names* are the models' by index."""
    shown = uses[:_MOST_ROWS]
    if len(uses) > len(shown):
        title = f"{title} (the first {len(shown)} of {len(uses)} GPUs)"
    height = 1.7 + 0.42 * len(shown)
    with picture(path, 11, height, 1, 2, width_ratios=(3, 1)) as (figure, axes):
        margins(figure, left=1.1, right=0.3, bottom=1.0, top=0.7, w=0.35, h=0)
        _draw_time(axes[0, 0], shown, names)
        _draw_memory(axes[0, 1], shown)
        _legend(figure, shown, names)
        figure.suptitle(title, x=0.012, y=1 - 0.12 / height, ha="left", va="top", fontsize=11.5, color=INK)


def _draw_time(ax: Any, uses: Sequence[GpuUse], names: Sequence[str]) -> None:
    homes: dict[Replica, list[tuple[float, int]]] = {}
    for row, use in enumerate(uses):
        ax.barh(row, 1, _HEIGHT, color=_IDLE, lw=0)
        left = 0.0
        for each in use.replicas:
            width = each.replica.share if use.divided else max(each.busy, 0.004)
            _block(ax, row, left, width, each, names, use.divided)
            homes.setdefault(each.replica, []).append((left + min(0.008, width / 2), row))  # beside the name
            left += width
    for points in homes.values():
        if len(points) > 1:
            ax.plot(*zip(*points, strict=True), color=INK, lw=1.4, marker="o", ms=3.5, zorder=3)
    _rows(ax, uses)
    widest = max([1.0, *(use.busy for use in uses if not use.divided)])
    ax.axvline(1, color=INK, lw=0.8, ls="--")
    ax.set(
        title="Time, or share, of each GPU (× largest batch)",
        xlim=(0, widest * 1.02),
        xlabel="of the GPU (%)",
    )
    ticks = [0.2 * step for step in range(int(widest / 0.2) + 1)] if widest <= 2 else [0, 1, widest]
    ax.set_xticks(ticks, [f"{100 * tick:.0f}" for tick in ticks])


def _block(
    ax: Any, row: int, left: float, width: float, use: ReplicaUse, names: Sequence[str], divided: bool
) -> None:
    model = use.replica.model
    color = color_of(use.replica.model)
    filled = min(1.0, use.busy) * width if divided else width
    ax.barh(row, width, _HEIGHT, left, color=color, alpha=0.3, edgecolor="white", lw=1)
    ax.barh(row, filled, _HEIGHT, left, color=color, alpha=0.9, edgecolor="white", lw=1)
    if width >= _NARROW:
        text = _fitting(f"{names[model]} ×{use.replica.batch}", width)
        ink = INK if _bright(color) or divided else "white"
        ax.text(left + width / 2, row, text, ha="center", va="center", fontsize=7.5, color=ink, clip_on=True)


def _fitting(text: str, width: float) -> str:
    most = int(width * 95)
    return text if len(text) <= most else text[: max(1, most - 1)] + "…"


def _draw_memory(ax: Any, uses: Sequence[GpuUse]) -> None:
    for row, use in enumerate(uses):
        ax.barh(row, use.gpu.memory / GIB, _HEIGHT, color=_IDLE, lw=0)
        left = 0.0
        for each in use.replicas:
            width = each.memory / GIB
            color = color_of(each.replica.model)
            ax.barh(row, width, _HEIGHT, left, color=color, alpha=0.9, edgecolor="white", lw=1)
            left += width
    _rows(ax, uses)
    ax.set_yticks([])
    ax.set(title="Memory", xlabel="GiB", xlim=(0, max(use.gpu.memory for use in uses) / GIB * 1.02))


def _rows(ax: Any, uses: Sequence[GpuUse]) -> None:
    ax.set_yticks(range(len(uses)), [f"{use.gpu.kind} {use.gpu.id}" for use in uses])
    ax.set(ylim=(len(uses) - 0.4, -0.6))
    ax.grid(axis="y", visible=False)


def _legend(figure: Any, uses: Sequence[GpuUse], names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    placed = sorted({each.replica.model for use in uses for each in use.replicas})
    handles = [Patch(color=color_of(model), label=names[model]) for model in placed[:18]]
    if handles:
        figure.legend(handles=handles, loc="lower center", ncols=9, fontsize=8.5)


def _bright(color: str) -> bool:
    """Whether a colour is bright, by how the eye weighs red, green and blue."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140


# A plan in sentences: what was asked and answered, what is missing, what breaks first.


def shown(answer: PlanningAnswer) -> list[Any]:
    """Return all that is shown of an answer: lines and tables, in their order."""
    found = list[Any](headline(answer))
    chosen = answer.chosen
    if chosen is not None:
        found += [placement_table(chosen.uses, chosen.problem)]
        found += [models_table(answer, chosen), *missing_lines(chosen)]
        found += [growth_line(answer, chosen), tried_line(answer)]
        found += [against_table(answer)] if answer.rivals else []
        found += rivals_missing(answer)
    return [line(each) if isinstance(each, str) else each for each in found if each != ""]


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
        most = max((each.gpus for each in answer.attempts), default=chosen.gpus)
        yield (
            f"{label}: no number of such GPUs up to {most} gives every model {goal} in time; "
            f"this is its plan for {counted(chosen.gpus, 'GPU')}"
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
            f"the scenario's cluster has {counted(there, 'GPU')}: the plan asks for {more} more like "
            f"{'it' if there == 1 else 'them'}{way}"
        )
    elif chosen.gpus < there:
        free = there - chosen.gpus
        yield f"the scenario's cluster has {counted(there, 'GPU')}: {free} of them would stay free"


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
    return f"{counted(attempt.gpus, 'GPU')} ({told})" if unequal else counted(attempt.gpus, "GPU")


def placement_table(uses: tuple[GpuUse, ...], problem: Problem) -> Table:
    """Return a row for each replica on each GPU; GPUs with the same replicas and loads stand together."""
    columns = ("memory", "busy", "model", "batch", "share", "shape", "takes", "works", "why")
    table = plain_table("GPU", *columns)
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
    first = group[0]
    last = group[-1]
    numbers = str(first.gpu.id) if first is last else f"{first.gpu.id} to {last.gpu.id}"
    memory = f"{_gib(first.memory)} of {_gib(first.gpu.memory)}"
    return f"{numbers} {first.gpu.kind}", memory, f"{first.busy:.0%}"


def _replica_cells(use: ReplicaUse, names: dict[int, str], explained: set[Replica]) -> tuple[str | Text, ...]:
    one = use.replica
    shape = "" if one.shape.gpus == 1 else f"{one.shape} on {', '.join(map(str, one.gpus))}"
    share = "" if one.share >= 1 else f"{one.share:.0%}"
    why = f"as on GPU {one.gpus[0]}" if one in explained else one.why
    size = _gib(use.memory)
    works = f"{use.busy:.0%}"
    return (Text(names[one.model]), str(one.batch), share, shape, size, works, Text(why))


def _leave_out_empty(table: Table) -> None:
    """Leave out columns that say nothing, so that the table fits a narrow terminal more often."""
    table.columns = [column for column in table.columns if any(column.cells)]


def models_table(answer: PlanningAnswer, attempt: Attempt) -> Table:
    """Return what each model asks for and gets, on requests that the plan was not made with."""
    table = plain_table(
        "model", "SLO ms", "requests/s", "replicas", "in time", "lowest", "highest", "can grow"
    )
    plan = attempt.plan
    judged = attempt.judged
    for place, model in enumerate(attempt.problem.models):
        replicas = len(list(plan.of_model(model.index)))
        got = _attained(judged.models[place] if judged else None, attempt.target)
        room = _room(answer.alone.get(place))
        if not model.rate:
            got = ("nobody asks", "", "")
            room = ""
        table.add_row(
            Text(model.name),
            f"{to_ms(model.slo):,.3f}".rstrip("0").rstrip("."),
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
    title = f"on {counted(chosen.gpus, 'GPU')}"
    table = plain_table("policy", f"in time, {title}", "lowest", "highest", "worst model", "", "fewest GPUs")
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


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"
