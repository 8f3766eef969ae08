"""Tables show a plan on a terminal: the replicas of each GPU and why, what each model gets, and rivals."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from astrarium.core.quantities import GIB, counted, to_ms
from astrarium.run.tables import plain_table

if TYPE_CHECKING:
    from astrarium.placement.plan import Replica
    from astrarium.placement.problem import Problem
    from astrarium.serving.planning.answer import PlanningAnswer
    from astrarium.serving.planning.gpu_use import GpuUse, ReplicaUse
    from astrarium.serving.planning.growth import Growth
    from astrarium.serving.planning.load import Attained
    from astrarium.serving.planning.search import Attempt

from astrarium.serving.planning.sentences import (
    growth_line,
    headline,
    length_lines,
    missing_lines,
    path_line,
    rivals_missing,
    tried_line,
)


def shown(answer: PlanningAnswer) -> list[Any]:
    """Return all that is shown of an answer: lines and tables, in their order."""
    parts = list[Any](headline(answer))
    chosen = answer.chosen
    if chosen is not None:
        parts += [placement_table(chosen.uses, chosen.problem)]
        parts += [*length_lines(answer), models_table(answer, chosen), *missing_lines(chosen)]
        parts += [growth_line(answer, chosen), path_line(answer), tried_line(answer)]
        parts += [against_table(answer)] if answer.rivals else []
        parts += rivals_missing(answer)
    return [text_of(part) if isinstance(part, str) else part for part in parts if part != ""]


def text_of(sentence: str) -> Text:
    """Return a sentence as text without markup, which the terminal may break anywhere."""
    return Text(sentence, no_wrap=True, overflow="ignore")


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
        rows = [_replica_cells(use, names, explained) for use in group[0].replicas]
        explained.update(use.replica for use in group[0].replicas)
        for number, cells in enumerate(rows or [("empty", *[""] * 6)]):
            table.add_row(*(_home(group) if number == 0 else ("", "", "")), *cells)
    _leave_out_empty(table)
    return table


def _alike(use: GpuUse) -> object:
    working = tuple((part.replica, part.memory, f"{part.busy:.2f}") for part in use.replicas)
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
        headroom = _headroom(answer.alone.get(place))
        if not model.rate:
            got = ("nobody asks", "", "")
            headroom = ""
        table.add_row(
            Text(model.name),
            f"{to_ms(model.slo):,.3f}".rstrip("0").rstrip("."),
            f"{model.rate:,.1f}",
            str(replicas or "none"),
            *got,
            headroom,
        )
    if len(attempt.problem.models) > 1 and judged is not None:
        total = sum(model.rate for model in attempt.problem.models)
        table.add_row(
            "all", "", f"{total:,.1f}", str(len(plan.replicas)), *_attained(judged.overall, 0.0), ""
        )
    _leave_out_empty(table)
    return table


def _headroom(growth: Growth | None) -> str:
    """Say how far a model can grow alone, the others staying as they are."""
    if growth is None:
        return ""
    return f"{growth.carries:.2f}x" if growth.breaks is not None else f"over {growth.carries:.0f}x"


def _attained(attained: Attained | None, target: float) -> tuple[str | Text, str, str]:
    if attained is None:
        return ("not judged", "", "")
    style = "" if target == 0 else "green" if attained.mean >= target else "red"
    return Text(f"{attained.mean:.2%}", style=style), f"{attained.low:.2%}", f"{attained.high:.2%}"


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
