"""Tuning runs, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from astrarium.core.quantities import SECOND, Time, counted
from astrarium.run.tables import as_it_is, plain_table, unit_of
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.report.summary import WINDOWS, CandidateSummary, TuningSummary

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


# How full each GPU was when, as lines of a terminal: a block for each window of time.


BLOCKS = " ▁▂▃▄▅▆▇█"
MOST_LINES = 64


def heat_map(label: str, record: TuningRecord, end: Time | None = None, width: int = WINDOWS) -> list[Text]:
    """*end*: where the time axis ends; runs side by side share one."""
    end = record.end if end is None else end
    found = record.windows(width, end)
    names = [f"GPU {gpu}" for gpu in found]
    margin = max(map(len, names), default=0) + 1
    lines = [f"{label}: how much of each GPU was held ({record.utilization():.0%} in all)"]
    for name, parts in list(zip(names, found.values(), strict=True))[:MOST_LINES]:
        mean = sum(parts) / len(parts) * end / max(1, record.end)
        lines.append(f"{name:>{margin}} │{blocks(parts)}│ {mean:4.0%}")
    if len(names) > MOST_LINES:
        lines.append(f"{'...':>{margin}} ({len(names) - MOST_LINES} more)")
    lines.append(" " * (margin + 2) + _axis(end, width))
    return [as_it_is(line, no_wrap=True) for line in [*lines, ""]]


def fitting(columns: int, gpus: Sequence[int]) -> int:
    """Windows for which a terminal of so many columns has room."""
    beside = len(f" GPU {max(gpus, default=0)} ││ 100%")
    return max(12, min(WINDOWS, columns - beside))


def blocks(parts: Sequence[float]) -> str:
    """Only what is empty looks empty, and only what is full looks full."""
    return "".join(_block(part) for part in parts)


def _block(part: float) -> str:
    if part <= 0:
        return BLOCKS[0]
    if part >= 1 - 1e-9:
        return BLOCKS[-1]
    return BLOCKS[min(len(BLOCKS) - 2, max(1, round(part * (len(BLOCKS) - 1))))]


def _axis(end: Time, width: int) -> str:
    unit, size = unit_of(end / SECOND)
    last = f"{end / SECOND / size:.4g} {unit}"
    return f"0 {last:>{width - 2}}"


MOST_CANDIDATES = 20
MOST_LETTERS = 60
LINE = 200
Seeded = Mapping[str, Sequence[TuningSummary]]  # by policy: one for each seed


def best_line(summary: TuningSummary, whose: str = "") -> Text:
    """A sentence: it is not wrapped. *whose* of several runs it is."""
    best = summary.best
    if best is None:
        return as_it_is(f"no candidate has a value: {summary.over}", no_wrap=True)
    number = f"candidate {best.candidate}" + (f" of {whose}" if whose else "")
    told = f"best: {_value(best.value)} after {counted(best.iterations, 'iteration')}, {number}: "
    where = "" if best.checkpoint is None else f"\nits checkpoint: {best.checkpoint}"
    return as_it_is(told + configuration(best.configuration) + where, no_wrap=True)


def configuration(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def overview_table(runs: Seeded) -> Table:
    """One row for each policy, means over seeds. Ratios are how many times sooner than the first policy."""
    everyone = [each for summaries in runs.values() for each in summaries]
    unit, size = unit_of(max(each.makespan_s for each in everyone))
    goal = any(each.target is not None for each in everyone)
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
    """In a narrow terminal the first ones stay readable: headings are folded, and no numbers."""
    for column in table.columns[:columns]:
        column.overflow = "fold"
        column.min_width = max((len(str(cell)) for cell in list(column.cells)[1:]), default=1)


def _caption(first: Sequence[TuningSummary], label: str, several: bool, goal: bool) -> str:
    told = [f"target: {first[0].target:g} ({first[0].goal})"] if goal else []
    told += (
        [f"means over {len(first)} seeds; in brackets: the lowest and the highest"] if len(first) > 1 else []
    )
    told += [f"x: how many times sooner than {label}"] if several else []
    return "; ".join([*told, "busy: the part of all GPUs that trials held"])


def remembered_line(summaries: Iterable[TuningSummary]) -> Text | None:
    known = {each.policy: each.remembered for each in summaries if each.remembered}
    if not known:
        return None
    counts = ", ".join(f"{count} of {policy}" for policy, count in known.items())
    told = f"trials that had ended before this run went on: {counts}; times and GPUs below are of this run"
    return as_it_is(told, no_wrap=True)


def failures_line(candidates: Sequence[CandidateSummary]) -> Text | None:
    """They are last in the table, where few look and long ones are cut."""
    failed = [each for each in candidates if each.standing == "failed"]
    failed.sort(key=lambda each: each.candidate)
    if not failed:
        return None
    first = f"the first, candidate {failed[0].candidate}: {last_line(failed[0].reason, LINE)}"
    return as_it_is(f"{len(failed)} of {len(candidates)} candidates failed; {first}", no_wrap=True)


def _timed(
    mine: Sequence[TuningSummary], first: Sequence[TuningSummary], name: str, size: float, several: bool
) -> list[str]:
    found = [getattr(each, name) for each in mine]
    known = [value for value in found if value is not None]
    missing = f" ({len(known)} of {len(found)})" if 0 < len(known) < len(found) else ""
    cells = [f"{fmean(known) / size:,.1f}{missing}" if known else "-"]
    return [*cells, ratio_told(ratios(mine, first, name))] if several else cells


def ratios(mine: Sequence[TuningSummary], first: Sequence[TuningSummary], name: str) -> list[float]:
    """Seed by seed: how many times sooner; where both have such a time. Of runs that were interrupted, the
    last policy may have fewer seeds."""
    pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(mine, first, strict=False)]
    return [theirs / ours for ours, theirs in pairs if ours and theirs]


def ratio_told(found: Sequence[float]) -> str:
    if not found:
        return "-"
    spread = f" ({min(found):.2f}..{max(found):.2f})" if len(found) > 1 else ""
    return f"{fmean(found):.2f}{spread}"


def _best(summaries: Sequence[TuningSummary]) -> str:
    values = [each.best.value for each in summaries if each.best is not None]
    return f"{fmean(values):.5g}" if values else "-"


def _use(summaries: Sequence[TuningSummary]) -> list[str]:
    means = {name: fmean(getattr(each, name) for each in summaries) for name in ("utilization", "gpu_hours")}
    counts = [fmean(getattr(each, name) for each in summaries) for name in ("moves", "trials", "candidates")]
    moves, trials, candidates = (f"{count:,.4g}" for count in counts)
    failed = sum(each.standings.get("failed", 0) for each in summaries) / len(summaries)
    told = f"{candidates} ({failed:,.4g} failed)" if failed else candidates
    return [f"{means['utilization']:.1%}", f"{means['gpu_hours']:,.3g}", moves, trials, told]


def candidates_table(candidates: Sequence[CandidateSummary]) -> Table:
    """The best first."""
    unit, size = unit_of(max((each.gpu_s for each in candidates), default=0.0))
    table = plain_table("candidate", "value", "iterations", f"GPU time {unit}", "moves", "ended")
    table.add_column("configuration", overflow="fold")
    for each in candidates[:MOST_CANDIDATES]:
        ended = each.standing if each.standing != "failed" else f"failed: {last_line(each.reason)}"
        source = "" if each.source is None else f" (from {each.source})"
        value = "-" if each.value is None else _value(each.value)
        numbers = (value, str(each.iterations), f"{each.gpu_s / size:,.1f}", str(each.moves))
        told = as_it_is(configuration(each.configuration) + source)
        table.add_row(str(each.candidate), *numbers, as_it_is(ended), told)
    _keep_whole(table, 3)
    if len(candidates) > MOST_CANDIDATES:
        table.caption = f"the best {MOST_CANDIDATES} of {len(candidates)} candidates"
    return table


def last_line(error: str, most: int = MOST_LETTERS) -> str:
    """Of a traceback: what went wrong."""
    lines = error.strip().splitlines() or [""]
    return lines[-1] if len(lines[-1]) <= most else lines[-1][: most - 3] + "..."


def seeds_table(summaries: Mapping[int, TuningSummary]) -> Table:
    unit, size = unit_of(max(each.makespan_s for each in summaries.values()))
    table = plain_table("seed", "best", f"makespan {unit}", f"to target {unit}", "busy")
    for seed, each in summaries.items():
        reached = "-" if each.time_to_target_s is None else f"{each.time_to_target_s / size:,.1f}"
        times = (f"{each.makespan_s / size:,.1f}", reached)
        table.add_row(str(seed), _best([each]), *times, f"{each.utilization:.1%}")
    return table
