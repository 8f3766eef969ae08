"""A plan as tables for a terminal: which replicas each GPU holds and why, what each model gets, how other
policies fare."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from astrarium.core.units import to_ms
from astrarium.serving.planning.words import gpus_told

if TYPE_CHECKING:
    from astrarium.placement.plan import Replica
    from astrarium.placement.problem import Problem
    from astrarium.serving.planning.answer import Answer
    from astrarium.serving.planning.growth import Growth
    from astrarium.serving.planning.judging import Attained
    from astrarium.serving.planning.search import Attempt
    from astrarium.serving.planning.use import GpuUse, ReplicaUse

GIB = 2**30


def placement_table(uses: tuple[GpuUse, ...], problem: Problem) -> Table:
    """One row for each replica on each GPU; GPUs on which the same replicas do the same stand together."""
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
    """Columns that say nothing, so that the table fits a narrow terminal more often."""
    table.columns = [column for column in table.columns if any(column.cells)]


def models_table(answer: Answer, attempt: Attempt) -> Table:
    """What each model asks for and gets, on requests that the plan was not made with."""
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
    """Alone, the others staying as they are."""
    if growth is None:
        return ""
    return f"{growth.carries:.2f}x" if growth.breaks is not None else f"over {growth.carries:.0f}x"


def _attained(found: Attained | None, target: float) -> tuple[str | Text, str, str]:
    if found is None:
        return ("not judged", "", "")
    style = "" if target == 0 else "green" if found.mean >= target else "red"
    return Text(f"{found.mean:.2%}", style=style), f"{found.low:.2%}", f"{found.high:.2%}"


def against_table(answer: Answer) -> Table:
    """Policies on as many GPUs and on the same requests; and the fewest GPUs that each needs."""
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
    """All digits before the point, and few behind it."""
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
