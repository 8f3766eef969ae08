"""A model whose inputs have an open dimension is measured by length: every batch size at every length.

Where inputs have several, it is measured at the sizes of a grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from astrarium.cli import output
from astrarium.cli.progress import bar
from astrarium.cli.serving.profile.grid import grid_of, named
from astrarium.cli.serving.profile.measuring import MADE_UP, Outcome, Wanted, is_made_up, own_requests
from astrarium.core.errors import InputError
from astrarium.core.quantities import Time, write_duration
from astrarium.core.size_grid import Size
from astrarium.run.waiting import waiting
from astrarium.serving.live import fills, profiling
from astrarium.serving.live.backends import examples
from astrarium.serving.live.backends.contract import (
    Bucketed,
    LoadedModel,
    PackedInGraphs,
    complete,
    graph_sizes,
)
from astrarium.serving.live.packing import is_packed
from astrarium.serving.live.profiling import Care, Measure, MeasuredTimes
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker import padding_trial
from astrarium.serving.live.worker.packing import together

L = TypeVar("L")
Tables = dict[Size, dict[int, Time]]  # by length, then by batch size

_RANGE = (
    'a range in the place of -1, such as "1..512": how long requests are decides what a batch takes. '
    "Write it into the scenario's `shape`, or say --input NAME:TYPE:1..512"
)


def is_open(specs: Sequence[TensorSpec]) -> bool:
    return bool(fills.axes_of(specs))


def check_ranges(specs: Sequence[TensorSpec]) -> None:
    for spec in fills.sent(specs):
        for place in spec.open_dimensions:
            if spec.sizes_of(place) is None:
                raise InputError(f"{spec.name}: shape", list(spec.shape), _RANGE)


def check_buckets(specs: Sequence[TensorSpec], wanted: Wanted) -> None:
    if wanted.buckets is not None and wanted.data is None:
        raise InputError("--buckets", wanted.buckets, "--data beside it: how long requests are decides")
    if wanted.buckets is not None and not is_open(specs):
        raise InputError("--buckets", wanted.buckets, f"to be left out: no input of {wanted.name} is open")


def by_length(model: LoadedModel, specs: Sequence[TensorSpec], care: Care, wanted: Wanted) -> Outcome:
    check_ranges(specs)
    requests = own_requests(wanted.data, specs)
    grid = grid_of(specs, wanted)
    with waiting(f"warming up {wanted.name}"):
        verdict = padding_trial.tried(model, together(specs), wanted.largest, careful=True)
        in_graphs = padding_trial.tried_in_graphs(model, together(specs), verdict, wanted.largest)
        if isinstance(model, Bucketed):
            model.padding_is(in_graphs.padding == "safe")
        model.warm_up([1])
        complete(model)
    rounded = isinstance(model, Bucketed) and bool(model.buckets)
    has_graphs = rounded or (isinstance(model, PackedInGraphs) and bool(model.packed_shapes))
    graphs = list(graph_sizes(model)) if has_graphs else []
    sizes = [size for size in graphs if size <= wanted.largest] or examples.sizes(wanted.largest)
    padded = verdict.padding == "safe"
    if is_packed(specs) and not padded:
        sizes = [1]  # they will run one by one
    tables: Tables = {}
    with bar(f"profiling {wanted.name}", len(grid.sizes)) as progress:
        for done, length in enumerate(grid.sizes, 1):
            data = None if requests is None else requests.between(grid.below(length), length)
            measure = profiling.measuring(model, fills.sized(specs, length), care, data)
            tables[length] = _table(measure, sizes, wanted)
            if progress is not None:
                progress(done)
    tables = rising(tables)
    if graphs:
        tables = {length: _stepped(table) for length, table in tables.items()}
    section = _section(tables, rounded, padded)
    if requests is None:
        return Outcome(section, _shown(tables, {}, MADE_UP if is_made_up(specs) else None))
    share = grid.share(requests)
    if rounded and padded:
        section["shares"] = {named(size): part for size, part in share.of.items()}
    found: dict[str, Any] = {"requests": {named(size): part for size, part in share.of.items()}}
    caption = None
    if padded and (rounded or len(grid.axes) > 1):
        found["padding"] = share.padding
        caption = f"rounded up to these, {share.padding:.1%} of what is computed is padding"
    return Outcome(section, _shown(tables, share.of, caption), found)


def _table(measure: Measure, sizes: Sequence[int], wanted: Wanted) -> dict[int, Time]:
    """Return what batches of one length take, up to the first that takes longer than is wanted."""

    def enough(times: MeasuredTimes) -> bool:
        return wanted.limit is not None and times.quantile(wanted.chance) > wanted.limit

    measured = profiling.in_order(measure, list(profiling.by_size(measure, sizes, enough)), wanted.chance)
    return profiling.rising(measured, wanted.chance, wanted.slack)


def rising(tables: Mapping[L, Mapping[int, Time]]) -> dict[L, dict[int, Time]]:
    """Return times that never fall as requests get longer, nor batches that get larger by that.

    Noise must not make longer ones look cheaper.
    """
    rising_tables: dict[L, dict[int, Time]] = {}
    before: Mapping[int, Time] = next(iter(tables.values()))
    for length, table in tables.items():
        rising_tables[length] = {size: max(table[size], before[size]) for size in table if size in before}
        before = rising_tables[length]
    return rising_tables


def _stepped(table: Mapping[int, Time]) -> dict[int, Time]:
    """Return a table in which a batch takes as long as the next size that has a graph."""
    steps = dict(table)
    for size, larger in pairwise(table):
        if size + 1 < larger:
            steps[size + 1] = table[larger]
    return dict(sorted(steps.items()))


def _section(tables: Tables, rounded: bool, padded: bool) -> dict[str, Any]:
    written = {
        named(length): {size: write_duration(time) for size, time in table.items()}
        for length, table in tables.items()
    }
    section: dict[str, Any] = {"lengths": written}
    if not padded:
        section["together"] = "length"
    elif rounded:
        section["rounded"] = True
    return section


def _shown(tables: Tables, shares: Mapping[Size, float], caption: str | None) -> Any:
    largest = sorted({size for table in tables.values() for size in table if _is_power(size)})
    titles = ("length \\ batch, ms", *map(str, largest), *(("requests",) if shares else ()))
    rows = [
        (str(named(length)), *(_cell(table, size) for size in largest), *_percent(shares, length))
        for length, table in tables.items()
    ]
    shown = output.table(right=titles, rows=rows)
    shown.caption = caption
    return shown


def _percent(shares: Mapping[Size, float], length: Size) -> list[str]:
    return [f"{shares[length]:.1%}"] if shares else []


def _cell(table: Mapping[int, Time], size: int) -> str:
    return f"{table[size] / 1e6:.3f}" if size in table else "-"


def _is_power(size: int) -> bool:
    return size & (size - 1) == 0
