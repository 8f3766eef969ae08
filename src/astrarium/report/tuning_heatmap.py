"""How full each GPU was when, as lines of a terminal: a block for each window of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from astrarium.core.units import SECOND, Time
from astrarium.report.cluster_tables import unit_of
from astrarium.report.tuning import WINDOWS
from astrarium.tuning.record import TuningRecord

if TYPE_CHECKING:
    from rich.text import Text

BLOCKS = " ▁▂▃▄▅▆▇█"
MOST_LINES = 64


def heat_map(label: str, record: TuningRecord, end: Time | None = None, width: int = WINDOWS) -> list[Text]:
    """*end*: where the time axis ends; runs side by side share one."""
    from rich.text import Text

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
    return [Text(line, no_wrap=True) for line in [*lines, ""]]


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
