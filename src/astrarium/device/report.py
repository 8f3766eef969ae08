"""Jobs on one GPU: the numbers of a run, its tables, a row for each job, and who held the GPU when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astrarium.core.level import Run, named
from astrarium.core.quantities import SECOND, Time
from astrarium.device.ledger import JobRow, Outcome
from astrarium.device.record import DeviceRecord, Span, summary
from astrarium.run.report import columns, picked, side_by_side, write_csv
from astrarium.run.tables import as_it_is, moment, plain_table, unit_of
from astrarium.run.timeline import Entry, process, slice_of, thread, timeline, write_timeline

if TYPE_CHECKING:
    from rich.table import Table

    from astrarium.device.scenario.read import JobScenario

Runs = Sequence["Run[JobScenario, DeviceRecord]"]
JOBS_FILE = "jobs.csv"
FILES = {
    JOBS_FILE: "one row a job: when it arrived, was admitted, first ran and ended; how; what it had",
    "timeline.json": "who held the GPU when: open it in https://ui.perfetto.dev or chrome://tracing",
}
_COLUMNS = ("job", "name", "arrived_s", "admitted_s", "started_s", "ended_s", "outcome", "reason",
            "iterations", "done", "service_s", "switches", "persistent_bytes", "ephemeral_bytes")  # fmt: skip
_MOST_JOBS = 40
_MOST_SLICES = 20_000
_MOST_TOLD = 12
_MOST_SHOWN = 120  # bars that can still be told apart
_MOST_NAMED = 40


_TIMES = ("makespan", "mean_queueing", "mean_admission", "mean_completion", "p95_completion")


class JobsSummary(msgspec.Struct, frozen=True):
    """Times over the jobs that finished."""

    policy: str
    jobs: int
    outcomes: dict[str, int]  # those that occurred
    makespan_s: float
    mean_queueing_s: float  # to the first iteration
    mean_admission_s: float  # to a place on the GPU
    mean_completion_s: float
    p95_completion_s: float
    switches: int
    lanes: int  # that ran at the same time, at most


def summarize(record: DeviceRecord) -> JobsSummary:
    numbers = summary(record.rows)
    outcomes = [row.outcome for row in record.rows]
    return JobsSummary(
        policy=record.policy,
        jobs=len(record.rows),
        outcomes={kind.name.lower(): outcomes.count(kind) for kind in Outcome if kind in outcomes},
        **{f"{name}_s": getattr(numbers, name) / SECOND for name in _TIMES},
        switches=sum(row.switches for row in record.rows),
        lanes=_at_once(record),
    )


def _at_once(record: DeviceRecord) -> int:
    """Count spans of different lanes that overlap; where one ends as another starts they do not."""
    changes = [(span.start, 1) for span in record.spans] + [(span.end, -1) for span in record.spans]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def overview_table(summaries: Mapping[str, JobsSummary]) -> Table:
    """Make one row for each policy, with times in minutes where they are long."""
    unit, size = unit_of(max(of_policy.makespan_s for of_policy in summaries.values()))
    times = ("makespan", "mean queueing", "mean completion", "p95 completion")
    table = plain_table("policy", "finished", *(f"{name} {unit}" for name in times), "switches", "lanes")
    for label, of_policy in summaries.items():
        seconds = (
            of_policy.makespan_s,
            of_policy.mean_queueing_s,
            of_policy.mean_completion_s,
            of_policy.p95_completion_s,
        )
        finished = f"{of_policy.outcomes.get('finished', 0)}/{of_policy.jobs}"
        counts = (f"{of_policy.switches:,}", str(of_policy.lanes))
        table.add_row(label, finished, *(f"{time / size:,.1f}" for time in seconds), *counts)
    return table


def jobs_table(record: DeviceRecord) -> Table:
    """Make rows in order of arrival; of the first jobs if there are very many."""
    unit, size = unit_of(_end(record) / SECOND)
    names = (f"{name} {unit}" for name in ("arrived", "admitted", "started", "ended"))
    table = plain_table("job", *names, "turns", "outcome")
    for row in record.rows[:_MOST_JOBS]:
        moments = (row.arrived, row.admitted, row.started, row.ended)
        instants = ("-" if at < 0 else f"{at / SECOND / size:,.1f}" for at in moments)
        ending = as_it_is(": ".join(part for part in (row.outcome.name.lower(), row.reason) if part))
        table.add_row(as_it_is(row.job.name), *instants, f"{row.done:,}", ending)
    if len(record.rows) > _MOST_JOBS:
        table.caption = f"the first {_MOST_JOBS} of {len(record.rows)} jobs"
    return table


shown = side_by_side


def tables(runs: Runs) -> list[Any]:
    """Return the overview; of a single run its jobs too."""
    jobs = [jobs_table(runs[0].record)] if len(runs) == 1 else []
    return [overview_table({name: run.summary for name, run in named(runs).items()}), *jobs]


def write(run: Run[JobScenario, DeviceRecord], folder: Path, outcomes: bool) -> None:
    """Write a row for each job, if *outcomes*, and who held the GPU when."""
    if outcomes:
        write_csv(folder / JOBS_FILE, _COLUMNS, map(_cells, run.record.rows))
    write_timeline(folder / "timeline.json", turns_timeline(run.record))


def rows(record: DeviceRecord) -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """Return jobs and their turns as columns; times in seconds."""
    turns = [(span.job, span.lane, span.start / SECOND, span.end / SECOND) for span in record.spans]
    return {
        "jobs": columns(_COLUMNS, map(_cells, record.rows)),
        "turns": columns(("job", "lane", "start_s", "end_s"), turns),
    }


def explain(run: Run[JobScenario, DeviceRecord], item: str) -> list[str]:
    """Say when a job came, was let in, had its turns and ended."""
    row = picked({row.job.name: row for row in run.record.rows}, item, "job")
    lines = [f"{row.job.name}, under {run.label}", f"It arrives at {moment(row.arrived)}."]
    if row.admitted >= 0:
        lines.append(f"It is let in at {moment(row.admitted)}, and first runs at {moment(row.started)}.")
    turns = [span for span in run.record.spans if span.job == row.job.id]
    lines += [
        f"It has lane {span.lane} from {moment(span.start)} to {moment(span.end)}."
        for span in turns[:_MOST_TOLD]
    ]
    if len(turns) > _MOST_TOLD:
        lines.append(f"It has the GPU {len(turns) - _MOST_TOLD:,} more times.")
    why = f": {row.reason}" if row.reason else ""
    return [*lines, f"It ends at {moment(row.ended)}, {row.outcome.name.lower()}{why}."]


def turns_timeline(record: DeviceRecord) -> Entry:
    """Return a track for each lane, with a slice for each stretch of turns of one job."""
    names = {row.job.id: row.job.name for row in record.rows}
    lanes = sorted({span.lane for span in record.spans})
    tracks = [entry for lane in lanes for entry in thread(1, lane, f"lane {lane}")]
    slices = [
        slice_of(names[span.job], 1, span.lane, span.start, span.end) for span in record.spans[:_MOST_SLICES]
    ]
    shown = {"policy": record.policy, "turns": len(record.spans), "turns_shown": len(slices)}
    return timeline([process(1, "GPU"), *tracks, *slices], shown)


def draw(runs: Runs, plots: Path, title: str) -> None:
    draw_turns([(name, run.record) for name, run in named(runs).items()], plots / "turns.png")


def _cells(row: JobRow) -> list[Any]:
    job = row.job
    moments = (row.arrived, row.admitted, row.started, row.ended)
    instants = ["" if at < 0 else at / SECOND for at in moments]
    ending = [row.outcome.name.lower(), row.reason, job.iterations, row.done, row.service / SECOND]
    return [job.id, job.name, *instants, *ending, row.switches, job.persistent, job.ephemeral]


def draw_turns(records: Sequence[tuple[str, DeviceRecord]], path: Path) -> None:
    """Draw a panel for each policy, with a row for each job: gray while it waits, else its lane's color."""
    from astrarium.run.plots import COLORS, margins, picture

    shown = min(_MOST_SHOWN, max(len(record.rows) for _, record in records))
    unit, size = unit_of(max(_end(record) for _, record in records) / SECOND)
    panel = min(6.0, 0.8 + 0.16 * shown)
    with picture(path, 12, 0.7 + panel * len(records), len(records), 1, sharex=True) as (figure, axes):
        margins(figure, left=1.3, right=0.2, bottom=0.5, top=0.3, w=0, h=0.4)
        for (label, record), ax in zip(records, axes.flat, strict=True):
            _panel(ax, record, shown, size * SECOND, COLORS)
            note = f" (the first {shown} of {len(record.rows)} jobs)" if len(record.rows) > shown else ""
            ax.set(title=f"{label}: who held the GPU when, by lane; gray: waits{note}")
        axes.flat[-1].set(xlabel=f"time ({unit})")


def _panel(ax: Any, record: DeviceRecord, shown: int, size: float, colors: Sequence[str]) -> None:
    """Draw one collection of bars for each job: thousands of turns are drawn in a moment."""
    lanes = _side_by_side(record.spans)
    spans: dict[int, list[Span]] = {}
    for span in record.spans:
        spans.setdefault(span.job, []).append(span)
    for row in record.rows[:shown]:
        place = (row.job.id - 0.4, 0.8)
        had = spans.get(row.job.id, [])
        ax.broken_barh([(row.arrived / size, (row.ended - row.arrived) / size)], place, color="#DDDDDD")
        bars = [(span.start / size, (span.end - span.start) / size) for span in had]
        ax.broken_barh(bars, place, facecolors=[colors[lanes[span.lane] % len(colors)] for span in had])
    ax.set(ylim=(shown - 0.4, -0.6), xlim=(0, None))
    if shown <= _MOST_NAMED:
        names = [row.job.name.replace("$", r"\$") for row in record.rows]  # no formulas
        ax.set_yticks(range(len(record.rows)), names)
    ax.grid(axis="y", visible=False)


def _side_by_side(spans: Sequence[Span]) -> dict[int, int]:
    """Return a place for each lane, the lowest that none of those still open has."""
    opened = {span.lane: span.start for span in reversed(spans)}
    closed = {span.lane: span.end for span in spans}
    places: dict[int, int] = {}
    for lane in sorted(opened, key=lambda lane: (opened[lane], lane)):
        occupied = {place for other, place in places.items() if closed[other] > opened[lane]}
        places[lane] = next(place for place in range(len(occupied) + 1) if place not in occupied)
    return places


def _end(record: DeviceRecord) -> Time:
    return max((row.ended for row in record.rows), default=0)
