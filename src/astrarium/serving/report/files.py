"""A finished run of requests as columns, files, a timeline and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.core.errors import InputError
from astrarium.core.level import Run, named
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.core.size_grid import rounded_up, written
from astrarium.run.report import side_by_side
from astrarium.run.timeline import write_timeline
from astrarium.serving.ledger import Fate, Outcome
from astrarium.serving.record import ServingRecord
from astrarium.serving.report.summary import Summary

if TYPE_CHECKING:
    from astrarium.serving.scenario import Scenario

Runs = Sequence["Run[Scenario, ServingRecord]"]
PLAN = "plan.yaml"
FILES = {
    "requests.npz": "one row a request: arrival, deadline, model, application, outcome (1 in time, 2 late, "
    "3 dropped, 4 failed), reason (an index into reasons), done, batch (-1: never ran), length (0: its model "
    "has none); times in ns",
    "batches.npz": "one row a batch: model, gpu, size, dispatched, started, finished, fate (1 finished, "
    "2 preempted, 3 failed); times in ns",
}

shown = side_by_side


def title(run: Run[Scenario, ServingRecord]) -> str:
    summary: Summary = run.summary
    return f"{summary.offered_rate:,.0f} requests/s"


def tables(runs: Runs) -> list[Any]:
    """Return the overview; of a single run its models too."""
    from astrarium.serving.report.tables import model_table, overview_table

    models = [model_table(runs[0].summary)] if len(runs) == 1 else []
    return [overview_table({name: run.summary for name, run in named(runs).items()}), *models]


def write(run: Run[Scenario, ServingRecord], folder: Path, outcomes: bool) -> None:
    """Write requests, if *outcomes*, batches, and the timeline."""
    from astrarium.serving.report.timeline import timeline

    record = run.record
    if outcomes:
        _write_columns(folder / "requests.npz", record.requests, reasons=record.reasons)
    _write_columns(folder / "batches.npz", record.batches, models=[m.name for m in record.setup.models])
    write_timeline(folder / "timeline.json", timeline(record))


def draw(runs: Runs, plots: Path, title: str) -> None:
    """Draw two pictures of all runs; of a single one also what an autoscaler would make of it."""
    from astrarium.serving.report.plots import DrawnRun, draw_overview
    from astrarium.serving.report.scaling_plot import draw_scaling
    from astrarium.serving.report.schedule_plot import draw_schedule

    drawn = [DrawnRun(name, run.record, run.summary) for name, run in named(runs).items()]
    draw_overview(drawn, plots / "overview.png", title)
    draw_schedule(drawn, plots / "schedule.png")
    if len(runs) == 1:
        draw_scaling(runs[0].record, plots / "scaling.png")


def rows(record: ServingRecord) -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """Return requests and batches as columns: names for models, outcomes and fates, times in seconds."""
    import numpy as np

    models = np.array([model.name for model in record.setup.models])
    reasons = np.array([*record.reasons, ""])
    outcomes = np.array([kind.name.lower() for kind in Outcome])
    fates = np.array([kind.name.lower() for kind in Fate])
    of = record.requests
    ran = record.batches
    requests: dict[str, Any] = {
        "model": models[of.model],
        "arrival_s": of.arrival / SECOND,
        "deadline_s": of.deadline / SECOND,
        "done_s": of.done / SECOND,
        "latency_s": (of.done - of.arrival) / SECOND,
        "outcome": outcomes[of.outcome],
        "reason": reasons[of.reason],
        "application": of.application,
        "batch": of.batch,
        "length": of.length,
    }
    batches: dict[str, Any] = {
        "model": models[ran.model],
        "gpu": ran.gpu,
        "size": ran.size,
        "dispatched_s": ran.dispatched / SECOND,
        "started_s": ran.started / SECOND,
        "finished_s": ran.finished / SECOND,
        "fate": fates[ran.fate],
    }
    return {"requests": requests, "batches": batches}


def explain(run: Run[Scenario, ServingRecord], item: str) -> list[str]:
    """Say when a request came, which batch took it, and how it ended."""
    record = run.record
    of = record.requests
    ran = record.batches
    if not item.isdigit() or int(item) >= len(of.arrival):
        raise InputError("ITEM", item, f"the number of a request, from 0 to {len(of.arrival) - 1}")
    request = int(item)
    model = record.setup.models[of.model[request]].name
    due = _ms(of.deadline[request] - of.arrival[request])
    sentences = [f"request {request} to {model}, under {run.label}"]
    if record.setup.models[of.model[request]].lengths is not None:
        sentences.append(_of_length(record, request))
    sentences.append(f"It arrives at {_ms(of.arrival[request])}, and must be answered within {due}.")
    if (batch := int(of.batch[request])) >= 0:
        with_others = f"in batch {batch}, of {ran.size[batch]}, on GPU {ran.gpu[batch]}"
        sentences.append(f"It leaves at {_ms(ran.dispatched[batch])} {with_others}.")
        sentences.append(f"The batch runs from {_ms(ran.started[batch])} to {_ms(ran.finished[batch])}.")
        sentences += _of_padding(record, batch)
    outcome = Outcome(int(of.outcome[request]))
    why = f": {record.reasons[of.reason[request]]}" if outcome is Outcome.DROPPED else ""
    took = _ms(of.done[request] - of.arrival[request])
    return [*sentences, f"After {took} it is {outcome.name.lower().replace('_', ' ')}{why}."]


def _of_length(record: ServingRecord, request: int) -> str:
    """Say how long a request is, and how long those are that run with it."""
    of = record.requests
    grid = record.grids.get(record.setup.models[of.model[request]].name)
    if grid is not None:
        shape = grid.shape(int(of.length[request]))
        return f"Its size is {written(shape)}; it runs as {written(rounded_up(shape, grid.axes))}."
    length = f"Its length is {of.length[request]}"
    if of.batch[request] < 0:
        return f"{length}."
    longest = of.length[of.batch == of.batch[request]].max()
    return f"{length}; the longest in its batch has {longest}."


def _of_padding(record: ServingRecord, batch: int) -> list[str]:
    """Say how much of a batch is padding, where its model has lengths."""
    import numpy as np

    from astrarium.serving.report.padding import work_of

    spec = record.setup.models[record.batches.model[batch]]
    padding = work_of(record, np.flatnonzero(record.requests.batch == batch), spec).padding
    return [] if padding is None else [f"{padding:.1%} of what the batch computes is padding."]


def _ms(time: int) -> str:
    return f"{time / MILLISECOND:,.3f} ms"


def _write_columns(path: Path, columns: Any, **extra: Sequence[str]) -> None:
    import numpy as np

    arrays: dict[str, Any] = {**vars(columns), **{name: np.array(list(v)) for name, v in extra.items()}}
    np.savez(path, **arrays)
