"""A model whose inputs have an open dimension is measured by length: every batch size at every length.

Lengths are those that requests of somebody's own are padded least by, or else half as long again each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from astrarium.cli import output
from astrarium.cli.progress import bar
from astrarium.cli.serving.profile.measuring import MADE_UP, Outcome, Wanted, is_made_up, own_requests
from astrarium.core.errors import InputError
from astrarium.core.lengths import least_padded, lengths_between, padding_of
from astrarium.core.quantities import Time, write_duration
from astrarium.run.waiting import waiting
from astrarium.serving.live import fills, profiling
from astrarium.serving.live.backends import examples
from astrarium.serving.live.backends.contract import Bucketed, LoadedModel, complete
from astrarium.serving.live.backends.own_requests import OwnRequests
from astrarium.serving.live.profiling import Care, Measure, MeasuredTimes
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker import padding_trial
from astrarium.serving.live.worker.padding import Padding

Tables = dict[int, dict[int, Time]]  # by length, then by size

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


def lengths_to_measure(specs: Sequence[TensorSpec], wanted: Wanted) -> list[int]:
    """Return lengths up to the longest of the first open dimension's range; none where nothing is open."""
    axes = fills.axes_of(specs)
    if not axes:
        return []
    (name, place), *_ = axes[0]
    range_ = next(spec for spec in specs if spec.name == name).sizes_of(place)
    if range_ is None:
        return []
    requests = own_requests(wanted.data, specs)
    if requests is None:
        return lengths_between(*range_)
    count = wanted.buckets or len(lengths_between(*range_))
    return least_padded(_lengths_of(requests), range_[1], count)


def _lengths_of(requests: OwnRequests) -> list[int]:
    lengths: list[int] = requests.lengths[:, 0].tolist()
    return lengths


def by_length(model: LoadedModel, specs: Sequence[TensorSpec], care: Care, wanted: Wanted) -> Outcome:
    check_ranges(specs)
    requests = own_requests(wanted.data, specs)
    lengths = lengths_to_measure(specs, wanted)
    axes = fills.axes_of(specs)
    with waiting(f"warming up {wanted.name}"):
        verdict = padding_trial.tried(model, Padding(tuple(specs)), wanted.largest, careful=True)
        if isinstance(model, Bucketed):
            model.padding_is(verdict.padding == "safe")
        model.warm_up([1])
        complete(model)
    in_graphs = isinstance(model, Bucketed) and model.buckets
    graphs = list(getattr(model, "graph_sizes", ())) if in_graphs else []
    sizes = [size for size in graphs if size <= wanted.largest] or examples.sizes(wanted.largest)
    tables: Tables = {}
    with bar(f"profiling {wanted.name}", len(lengths)) as progress:
        for done, (shorter, length) in enumerate(pairwise([0, *lengths]), 1):
            fixed = examples.with_lengths(specs, examples.nearest(length))
            data = None if requests is None else requests.between([shorter] * len(axes), [length] * len(axes))
            tables[length] = _table(profiling.measuring(model, fixed, care, data), sizes, wanted)
            if progress is not None:
                progress(done)
    tables = rising(tables)
    if graphs:
        tables = {length: _stepped(table) for length, table in tables.items()}
    together = "padded" if verdict.padding == "safe" else "length"
    section = _section(tables, bool(graphs) and together == "padded", together)
    if requests is None:
        return Outcome(section, _shown(tables, {}, MADE_UP if is_made_up(specs) else None))
    shares = _shares(_lengths_of(requests), lengths)
    found: dict[str, Any] = {"requests": shares}
    caption = None
    if "rounded" in section:
        found["padding"] = padding = round(padding_of(_lengths_of(requests), lengths), 4)
        caption = f"rounded up to these lengths, {padding:.1%} of what is computed is padding"
    return Outcome(section, _shown(tables, shares, caption), found)


def _shares(own: Sequence[int], lengths: Sequence[int]) -> dict[int, float]:
    """Return which share of requests is rounded up to each length."""
    counts = Counter(bisect_left(lengths, length) for length in own)
    return {length: round(counts[place] / len(own), 4) for place, length in enumerate(lengths)}


def _table(measure: Measure, sizes: Sequence[int], wanted: Wanted) -> dict[int, Time]:
    """Return what batches of one length take, up to the first that takes longer than is wanted."""

    def enough(times: MeasuredTimes) -> bool:
        return wanted.limit is not None and times.quantile(wanted.chance) > wanted.limit

    measured = profiling.in_order(measure, list(profiling.by_size(measure, sizes, enough)), wanted.chance)
    return profiling.rising(measured, wanted.chance, wanted.slack)


def rising(tables: Mapping[int, Mapping[int, Time]]) -> Tables:
    """Return times that never fall as requests get longer: noise must not make longer ones look cheaper."""
    rising_tables: Tables = {}
    before: Mapping[int, Time] = {}
    for length, table in tables.items():
        rising_tables[length] = {size: max(time, before.get(size, 0)) for size, time in table.items()}
        before = {**before, **rising_tables[length]}
    return rising_tables


def _stepped(table: Mapping[int, Time]) -> dict[int, Time]:
    """Return a table in which a batch takes as long as the next size that has a graph."""
    steps = dict(table)
    for size, larger in pairwise(table):
        if size + 1 < larger:
            steps[size + 1] = table[larger]
    return dict(sorted(steps.items()))


def _section(tables: Tables, rounded: bool, together: str) -> dict[str, Any]:
    written = {
        length: {size: write_duration(time) for size, time in table.items()}
        for length, table in tables.items()
    }
    section: dict[str, Any] = {"lengths": written}
    if rounded:
        section["rounded"] = True
    if together != "padded":
        section["together"] = together
    return section


def _shown(tables: Tables, shares: Mapping[int, float], caption: str | None) -> Any:
    largest = sorted({size for table in tables.values() for size in table if _is_power(size)})
    titles = ("length \\ batch, ms", *map(str, largest), *(("requests",) if shares else ()))
    rows = [
        (str(length), *(_cell(table, size) for size in largest), *_percent(shares, length))
        for length, table in tables.items()
    ]
    shown = output.table(right=titles, rows=rows)
    shown.caption = caption
    return shown


def _percent(shares: Mapping[int, float], length: int) -> list[str]:
    return [f"{shares[length]:.1%}"] if shares else []


def _cell(table: Mapping[int, Time], size: int) -> str:
    return f"{table[size] / 1e6:.3f}" if size in table else "-"


def _is_power(size: int) -> bool:
    return size & (size - 1) == 0
