"""A model whose inputs have an open dimension is measured by length: every batch size at every length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from astrarium.cli import output
from astrarium.cli.progress import bar
from astrarium.cli.serving.profile.measuring import MADE_UP, Outcome, Wanted, is_made_up
from astrarium.core.errors import InputError
from astrarium.core.lengths import lengths_between
from astrarium.core.quantities import Time, write_duration
from astrarium.run.waiting import waiting
from astrarium.serving.live import fills, profiling
from astrarium.serving.live.backends import examples
from astrarium.serving.live.backends.contract import Bucketed, LoadedModel, complete
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


def lengths_of(specs: Sequence[TensorSpec]) -> list[int]:
    """Return the lengths to measure: those of the first open dimension's range."""
    for spec in fills.sent(specs):
        for place in spec.open_dimensions:
            if spec.sizes_of(place) is None:
                raise InputError(f"{spec.name}: shape", list(spec.shape), _RANGE)
    (name, place), *_ = fills.axes_of(specs)[0]
    low, high = next(spec for spec in specs if spec.name == name).sizes_of(place) or (1, 1)
    return lengths_between(low, high)


def by_length(model: LoadedModel, specs: Sequence[TensorSpec], care: Care, wanted: Wanted) -> Outcome:
    if wanted.data is not None:
        expected = "to be left out: inputs are made up in every length of the range"
        raise InputError("--data", str(wanted.data), expected)
    lengths = lengths_of(specs)
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
        for done, length in enumerate(lengths, 1):
            fixed = examples.with_lengths(specs, examples.nearest(length))
            tables[length] = _table(profiling.measuring(model, fixed, care), sizes, wanted)
            if progress is not None:
                progress(done)
    tables = rising(tables)
    if graphs:
        tables = {length: _stepped(table) for length, table in tables.items()}
    together = "padded" if verdict.padding == "safe" else "length"
    return Outcome(_section(tables, bool(graphs) and together == "padded", together), _shown(tables, specs))


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


def _shown(tables: Tables, specs: Sequence[TensorSpec]) -> Any:
    largest = sorted({size for table in tables.values() for size in table if _is_power(size)})
    rows = [(str(length), *(_cell(table, size) for size in largest)) for length, table in tables.items()]
    shown = output.table(right=("length \\ batch, ms", *map(str, largest)), rows=rows)
    if is_made_up(specs):
        shown.caption = MADE_UP
    return shown


def _cell(table: Mapping[int, Time], size: int) -> str:
    return f"{table[size] / 1e6:.3f}" if size in table else "-"


def _is_power(size: int) -> bool:
    return size & (size - 1) == 0
