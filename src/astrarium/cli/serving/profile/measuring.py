"""The measuring of `astrarium profile`, with its progress bar and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from astrarium.cli import output
from astrarium.cli.progress import bar
from astrarium.core.errors import InputError
from astrarium.core.quantities import write_duration
from astrarium.run.waiting import waiting
from astrarium.serving.live import profiling
from astrarium.serving.live.backends import examples
from astrarium.serving.live.backends.contract import LoadedModel, complete, graph_sizes
from astrarium.serving.live.backends.own_requests import OwnRequests, read
from astrarium.serving.live.profiling import Care, Fit, Generator, MeasuredTimes
from astrarium.serving.live.tensors import DATATYPES, TensorSpec

_MIXED = (1, 2, 4, 8, 16)  # sizes of the batches that mix applications
MADE_UP = "measured with zeros and ones; a GPU may take a tenth longer for real inputs: give some with --data"


class Wanted(NamedTuple):
    """Which sizes are measured, and what the profile is to hold of them."""

    name: str
    largest: int
    limit: int | None  # the first size that takes longer is the last
    chance: float
    slack: float
    data: Path | None  # inputs of somebody's own
    buckets: int | None = None  # so many lengths at most


class Outcome(NamedTuple):
    profile: dict[str, Any]  # as a scenario has it
    table: Any
    found: Mapping[str, Any] = MappingProxyType({})  # what else was found out


def by_size(model: LoadedModel, specs: Sequence[TensorSpec], care: Care, wanted: Wanted) -> Outcome:
    requests = own_requests(wanted.data, specs)
    data = None if requests is None else requests.arrays
    with waiting(f"warming up {wanted.name}"):
        model.warm_up([1])
        complete(model)
    sizes = examples.sizes(wanted.largest, graph_sizes(model))
    measure = profiling.measuring(model, specs, care, data)
    measured = list[MeasuredTimes]()

    def enough(times_of_size: MeasuredTimes) -> bool:
        return wanted.limit is not None and times_of_size.quantile(wanted.chance) > wanted.limit

    with bar(f"profiling {wanted.name}", len(sizes)) as progress:
        for times_of_size in profiling.by_size(measure, sizes, enough):
            measured.append(times_of_size)
            if progress is not None:
                progress(len(measured))
    measured = profiling.in_order(measure, measured, wanted.chance)
    table = profiling.rising(measured, wanted.chance, wanted.slack)
    times = {size: write_duration(time) for size, time in table.items()}
    shown = _size_table(measured, table)
    if data is None and is_made_up(specs):
        shown.caption = MADE_UP
    return Outcome({"table": times}, shown)


def is_made_up(specs: Sequence[TensorSpec]) -> bool:
    """Whether some input is measured with zeros and ones."""
    return any(DATATYPES[spec.datatype].kind in "iu" and spec.values is None for spec in specs)


def own_requests(data: Path | None, specs: Sequence[TensorSpec]) -> OwnRequests | None:
    try:
        return None if data is None else read(data, specs)
    except InputError as error:
        raise error.at("--data") from None


def by_application(
    model: LoadedModel, applications: Mapping[str, Generator], care: Care, wanted: Wanted
) -> Outcome:
    if wanted.data is not None:
        expected = f"to be left out: {wanted.name} makes inputs for each of its applications"
        raise InputError("--data", str(wanted.data), expected)
    sizes = [size for size in _MIXED if size <= wanted.largest]
    with bar(f"profiling {wanted.name}", care.repeats * len(applications)) as progress:
        fit = profiling.by_application(model, applications, sizes, care, progress or (lambda done: None))
    measured = {
        name: {"time": {"samples": [write_duration(time) for time in times]}}
        for name, times in fit.alone.items()
    }
    section = {"applications": measured, "c0": write_duration(fit.c0), "c1": round(fit.c1, 6)}
    return Outcome({"dynamic": section}, _application_table(fit))


def _size_table(measured: list[MeasuredTimes], table: dict[int, int]) -> Any:
    titles = ("batch", "p50 ms", "p95 ms", "p99 ms", "max ms", "profile ms", "items/s at p50")
    rows = []
    for times in measured:
        spread = [f"{times.quantile(chance) / 1e6:.3f}" for chance in (0.5, 0.95, 0.99, 1.0)]
        rate = f"{times.size * 1e9 / times.quantile(0.5):,.0f}"
        rows.append((str(times.size), *spread, f"{table[times.size] / 1e6:.3f}", rate))
    return output.table(right=titles, rows=rows)


def _application_table(fit: Fit) -> Any:
    rows = []
    for name, times in fit.alone.items():
        spread = [times[int((len(times) - 1) * chance)] / 1e6 for chance in (0.5, 0.99, 1.0)]
        rows.append((name, *(f"{time:.3f}" for time in spread)))
    shown = output.table(right=("application", "p50 ms", "p99 ms", "max ms"), rows=rows)
    shown.caption = (
        f"batches of k: c0 {fit.c0 / 1e6:.3f} ms + {fit.c1:.3f} k max, off by {fit.error:.0%} on average"
    )
    return shown
