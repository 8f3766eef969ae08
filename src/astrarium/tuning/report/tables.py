"""Tuning runs, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from astrarium.core.quantities import counted
from astrarium.run.tables import as_it_is, plain_table, unit_of
from astrarium.tuning.report.summary import CandidateSummary, TuningSummary, metrics_of

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


MOST_CANDIDATES = 20
MOST_LETTERS = 60
LINE = 200
Seeded = Mapping[str, Sequence[TuningSummary]]  # by policy: one for each seed


def best_line(summary: TuningSummary, whose: str = "") -> Text:
    """Return the best as a sentence that is not wrapped. *whose* of several runs it is."""
    best = summary.best
    if best is None:
        return as_it_is(f"no candidate has a value: {summary.over}", no_wrap=True)
    number = f"candidate {best.candidate}" + (f" of {whose}" if whose else "")
    text = f"best: {_value(best.value)} after {counted(best.iterations, 'iteration')}, {number}: "
    where = "" if best.checkpoint is None else f"\nits checkpoint: {best.checkpoint}"
    if best.checkpoint is not None and best.checkpoint_iterations != best.iterations:
        where += f", after {counted(best.checkpoint_iterations or 0, 'iteration')}"
    return as_it_is(text + configuration(best.configuration) + where, no_wrap=True)


def configuration(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def overview_table(runs: Seeded) -> Table:
    """Make one row for each policy, means over seeds. Ratios are how much sooner than the first policy."""
    everyone = [summary for summaries in runs.values() for summary in summaries]
    unit, size = unit_of(max(summary.makespan_s for summary in everyone))
    goal = any(summary.target is not None for summary in everyone)
    several = len(runs) > 1
    times = [f"makespan {unit}", *(["x"] if several else [])]
    times += [f"to target {unit}", *(["x"] if several else [])] if goal else []
    table = plain_table("policy", "best", *times, "busy", "GPU-hours", "moves", "trials", "candidates")
    first = next(iter(runs.values()))
    for label, summaries in runs.items():
        cells = _timed(summaries, first, "makespan_s", size, several)
        cells += _timed(summaries, first, "time_to_target_s", size, several) if goal else []
        table.add_row(as_it_is(label), _best(summaries), *cells, *_use(summaries))
    table.caption = as_it_is(_caption(first, next(iter(runs)), several, goal))
    _keep_whole(table, 4 if several else 3)
    return table


def _keep_whole(table: Table, columns: int) -> None:
    """Fold headings, and no numbers, so that in a narrow terminal the first columns stay readable."""
    for column in table.columns[:columns]:
        column.overflow = "fold"
        column.min_width = max((len(str(cell)) for cell in list(column.cells)[1:]), default=1)


def _caption(first: Sequence[TuningSummary], label: str, several: bool, goal: bool) -> str:
    notes = [f"target: {first[0].target:g} ({first[0].goal})"] if goal else []
    notes += (
        [f"means over {len(first)} seeds; in brackets: the lowest and the highest"] if len(first) > 1 else []
    )
    notes += [f"x: how many times sooner than {label}"] if several else []
    return "; ".join([*notes, "busy: the part of all GPUs that trials held"])


def remembered_line(summaries: Iterable[TuningSummary]) -> Text | None:
    known = {summary.policy: summary.remembered for summary in summaries if summary.remembered}
    if not known:
        return None
    counts = ", ".join(f"{count} of {policy}" for policy, count in known.items())
    text = f"trials that had ended before this run went on: {counts}; times and GPUs below are of this run"
    return as_it_is(text, no_wrap=True)


def failures_line(candidates: Sequence[CandidateSummary]) -> Text | None:
    """Return why candidates failed: in the table they are last, where few look and long reasons are cut."""
    failed = [candidate for candidate in candidates if candidate.standing == "failed"]
    failed.sort(key=lambda candidate: candidate.candidate)
    if not failed:
        return None
    first = f"the first, candidate {failed[0].candidate}: {last_line(failed[0].reason, LINE)}"
    return as_it_is(f"{len(failed)} of {len(candidates)} candidates failed; {first}", no_wrap=True)


def _timed(
    mine: Sequence[TuningSummary], first: Sequence[TuningSummary], name: str, size: float, several: bool
) -> list[str]:
    times = [getattr(summary, name) for summary in mine]
    known = [value for value in times if value is not None]
    missing = f" ({len(known)} of {len(times)})" if 0 < len(known) < len(times) else ""
    cells = [f"{fmean(known) / size:,.1f}{missing}" if known else "-"]
    return [*cells, ratio_told(ratios(mine, first, name))] if several else cells


def ratios(mine: Sequence[TuningSummary], first: Sequence[TuningSummary], name: str) -> list[float]:
    """Seed by seed: how many times sooner; where both have such a time. Of runs that were interrupted, the
    last policy may have fewer seeds."""
    pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(mine, first, strict=False)]
    return [theirs / ours for ours, theirs in pairs if ours and theirs]


def ratio_told(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    spread = f" ({min(ratios):.2f}..{max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{fmean(ratios):.2f}{spread}"


def _best(summaries: Sequence[TuningSummary]) -> str:
    values = [summary.best.value for summary in summaries if summary.best is not None]
    return f"{fmean(values):.5g}" if values else "-"


def _use(summaries: Sequence[TuningSummary]) -> list[str]:
    means = {
        name: fmean(getattr(summary, name) for summary in summaries) for name in ("utilization", "gpu_hours")
    }
    counts = [
        fmean(getattr(summary, name) for summary in summaries) for name in ("moves", "trials", "candidates")
    ]
    moves, trials, candidates = (f"{count:,.4g}" for count in counts)
    failed = sum(summary.standings.get("failed", 0) for summary in summaries) / len(summaries)
    tried = f"{candidates} ({failed:,.4g} failed)" if failed else candidates
    return [f"{means['utilization']:.1%}", f"{means['gpu_hours']:,.3g}", moves, trials, tried]


def candidates_table(candidates: Sequence[CandidateSummary]) -> Table:
    """Make one row for each candidate, the best first."""
    unit, size = unit_of(max((candidate.gpu_s for candidate in candidates), default=0.0))
    metrics = metrics_of(candidates)
    table = plain_table("candidate", "value", *metrics, "iterations", f"GPU time {unit}", "moves", "ended")
    table.add_column("configuration", overflow="fold")
    for candidate in candidates[:MOST_CANDIDATES]:
        ended = (
            candidate.standing if candidate.standing != "failed" else f"failed: {last_line(candidate.reason)}"
        )
        source = "" if candidate.source is None else f" (from {candidate.source})"
        value = "-" if candidate.value is None else _value(candidate.value)
        others = [_value(candidate.metrics[name]) if name in candidate.metrics else "-" for name in metrics]
        numbers = (
            value,
            *others,
            str(candidate.iterations),
            f"{candidate.gpu_s / size:,.1f}",
            str(candidate.moves),
        )
        description = as_it_is(configuration(candidate.configuration) + source)
        table.add_row(str(candidate.candidate), *numbers, as_it_is(ended), description)
    _keep_whole(table, 3 + len(metrics))
    if len(candidates) > MOST_CANDIDATES:
        table.caption = f"the best {MOST_CANDIDATES} of {len(candidates)} candidates"
    return table


def last_line(error: str, most: int = MOST_LETTERS) -> str:
    """Return of a traceback what went wrong."""
    lines = error.strip().splitlines() or [""]
    return lines[-1] if len(lines[-1]) <= most else lines[-1][: most - 3] + "..."


def seeds_table(summaries: Mapping[int, TuningSummary]) -> Table:
    unit, size = unit_of(max(summary.makespan_s for summary in summaries.values()))
    table = plain_table("seed", "best", f"makespan {unit}", f"to target {unit}", "busy")
    for seed, summary in summaries.items():
        reached = "-" if summary.time_to_target_s is None else f"{summary.time_to_target_s / size:,.1f}"
        times = (f"{summary.makespan_s / size:,.1f}", reached)
        table.add_row(str(seed), _best([summary]), *times, f"{summary.utilization:.1%}")
    return table
