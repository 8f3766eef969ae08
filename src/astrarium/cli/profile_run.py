"""The measuring of `astrarium profile`, with its progress bar and its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from astrarium.cli.progress import bar
from astrarium.core.quantities import write_duration
from astrarium.engines import measure
from astrarium.engines.waiting import waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from astrarium.engines.backends.contract import LoadedModel
    from astrarium.engines.measure import Care, Fit, Measured
    from astrarium.engines.tensors import TensorSpec

_MIXED = (1, 2, 4, 8, 16)  # sizes of the batches that mix applications


class Wanted(NamedTuple):
    """Which sizes are measured, and what the profile is to hold of them."""

    name: str
    largest: int
    limit: int | None  # the first size that takes longer is the last
    chance: float
    slack: float


class Outcome(NamedTuple):
    profile: dict[str, Any]  # as a scenario has it
    table: Any


def by_size(model: LoadedModel, specs: Sequence[TensorSpec], care: Care, wanted: Wanted) -> Outcome:
    sizes = measure.sizes_up_to(wanted.largest)
    with waiting(f"warming up {wanted.name}"):
        model.warm_up([1])
    measured: list[Measured] = []

    def enough(found: Measured) -> bool:
        return wanted.limit is not None and found.quantile(wanted.chance) > wanted.limit

    with bar(f"profiling {wanted.name}", len(sizes)) as progress:
        for found in measure.by_size(model, specs, sizes, care, enough):
            measured.append(found)
            if progress is not None:
                progress(len(measured))
    measured = measure.in_order(model, specs, measured, care, wanted.chance)
    table = measure.rising(measured, wanted.chance, wanted.slack)
    times = {size: write_duration(time) for size, time in table.items()}
    return Outcome({"table": times}, _size_table(measured, table))


def by_application(model: LoadedModel, care: Care, wanted: Wanted) -> Outcome:
    generators = model.applications  # type: ignore[attr-defined]
    sizes = [size for size in _MIXED if size <= wanted.largest]
    with bar(f"profiling {wanted.name}", care.repeats * len(generators)) as progress:
        fit = measure.by_application(model, generators, sizes, care, progress or (lambda done: None))
    applications = {
        name: {"time": {"samples": [write_duration(time) for time in times]}}
        for name, times in fit.alone.items()
    }
    found = {"applications": applications, "c0": write_duration(fit.c0), "c1": round(fit.c1, 6)}
    return Outcome({"dynamic": found}, _application_table(fit))


def _size_table(measured: list[Measured], table: dict[int, int]) -> Any:
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    for title in ("batch", "p50 ms", "p95 ms", "p99 ms", "max ms", "profile ms", "items/s at p50"):
        shown.add_column(title, justify="right")
    for found in measured:
        spread = [f"{found.quantile(chance) / 1e6:.3f}" for chance in (0.5, 0.95, 0.99, 1.0)]
        rate = f"{found.size * 1e9 / found.quantile(0.5):,.0f}"
        shown.add_row(str(found.size), *spread, f"{table[found.size] / 1e6:.3f}", rate)
    return shown


def _application_table(fit: Fit) -> Any:
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    for title in ("application", "p50 ms", "p99 ms", "max ms"):
        shown.add_column(title, justify="right")
    for name, times in fit.alone.items():
        spread = [times[int((len(times) - 1) * chance)] / 1e6 for chance in (0.5, 0.99, 1.0)]
        shown.add_row(name, *(f"{time:.3f}" for time in spread))
    shown.caption = (
        f"batches of k: c0 {fit.c0 / 1e6:.3f} ms + {fit.c1:.3f} k max, off by {fit.error:.0%} on average"
    )
    return shown
