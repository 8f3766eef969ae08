"""A heat map shows in a terminal how full each GPU was when: a block for each window of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from astrarium.core.quantities import SECOND, Time
from astrarium.run.tables import as_it_is, unit_of
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.report.summary import WINDOWS

if TYPE_CHECKING:
    from rich.text import Text


BLOCKS = " ▁▂▃▄▅▆▇█"
MOST_LINES = 64


def heat_map(label: str, record: TuningRecord, end: Time | None = None, width: int = WINDOWS) -> list[Text]:
    """Return a row of text for each GPU. *end*: where the time axis ends; runs side by side share one."""
    end = record.end if end is None else end
    windows = record.windows(width, end)
    names = [f"GPU {gpu}" for gpu in windows]
    margin = max(map(len, names), default=0) + 1
    lines = [f"{label}: how much of each GPU was held ({record.utilization():.0%} in all)"]
    for name, parts in list(zip(names, windows.values(), strict=True))[:MOST_LINES]:
        mean = sum(parts) / len(parts) * end / max(1, record.end)
        lines.append(f"{name:>{margin}} │{blocks(parts)}│ {mean:4.0%}")
    if len(names) > MOST_LINES:
        lines.append(f"{'...':>{margin}} ({len(names) - MOST_LINES} more)")
    lines.append(" " * (margin + 2) + _axis(end, width))
    return [as_it_is(line, no_wrap=True) for line in [*lines, ""]]


def fitting(columns: int, gpus: Sequence[int]) -> int:
    """Return how many windows fit in a terminal of so many columns."""
    beside = len(f" GPU {max(gpus, default=0)} ││ 100%")
    return max(12, min(WINDOWS, columns - beside))


def blocks(parts: Sequence[float]) -> str:
    """Return a character for each part. Only what is empty looks empty, only what is full looks full."""
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
