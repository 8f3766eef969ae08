"""`workload.lengths`: how long the requests of a workload are, for all models or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import gt
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.decode import Decoder, constructed
from astrarium.core.errors import InputError, did_you_mean, one_of
from astrarium.core.lengths import (
    LENGTH_DISTRIBUTIONS,
    ConstantLength,
    LengthDistribution,
    SampledLength,
    WeightedLength,
)
from astrarium.core.plain_data import read_text
from astrarium.core.profiles import BySize, profile_by_length
from astrarium.core.size_grid import SizeGrid, size_of, written
from astrarium.serving.scenario.schema import Model
from astrarium.serving.scenario.workload import Workload

LENGTH_FORM = (
    f"one distribution of lengths: {', '.join(LENGTH_DISTRIBUTIONS)}, such as "
    "{lognormal: {median: 64, sigma: 0.8}}, {weights: {16: 8, 512: 2}} or {samples: lengths.txt}"
)


class LengthReader:
    """A length reader gives each model that has lengths the distribution of its requests."""

    def __init__(self, models: Mapping[str, Model], base: Path, decoder: Decoder) -> None:
        by_name = {name: profile_by_length(model.profile) for name, model in models.items()}
        self._longest = {name: known.longest for name, known in by_name.items() if known is not None}
        self._grids = {name: known.grid for name, known in by_name.items() if isinstance(known, BySize)}
        self._models = list(models)
        self._base = base
        self._decoder = decoder

    def workload(self, workload: Workload, serving: bool) -> Workload:
        """Read the lengths that a workload tells; where it is only served, calls tell how long they are."""
        raw = workload.lengths
        lengths = {} if raw is None else self._read(raw, "workload.lengths")
        if not serving:
            self._check_complete(workload, lengths)
        return msgspec.structs.replace(workload, lengths=lengths or None)

    def _read(self, raw: Any, field: str) -> dict[str, LengthDistribution]:
        if not isinstance(raw, dict) or not raw:
            raise InputError(field, raw, f"{LENGTH_FORM}; or a mapping from models to such")
        if not self._longest:
            raise InputError(field, raw, "a model with a profile by length, {lengths: {16: ..., 512: ...}}")
        if set(raw) <= set(LENGTH_DISTRIBUTIONS) and not set(raw) & set(self._models):
            return {name: self._distribution(raw, field, name) for name in self._longest}
        return {name: self._named(name, one, f"{field}.{name}") for name, one in raw.items()}

    def _named(self, name: str, raw: Any, field: str) -> LengthDistribution:
        if name not in self._models:
            expected = f"a model of the scenario: {one_of(self._models, name)}; or {LENGTH_FORM}"
            raise InputError(field, raw, expected)
        if name not in self._longest:
            expected = f"to be left out: the profile of {name} says nothing of lengths"
            raise InputError(field, raw, expected)
        return self._distribution(raw, field, name)

    def _distribution(self, raw: Any, field: str, name: str) -> LengthDistribution:
        if isinstance(raw, LengthDistribution):
            return raw
        form = _form_of(raw, field)
        body = raw[form]
        if name in self._grids:
            body = _numbered(body, self._grids[name], f"{field}.{form}")
        read = self._by_form(form, body, f"{field}.{form}")
        if read.largest > self._longest[name]:
            expected = (
                f"lengths of at most {self._longest[name]}, the longest that the profile of {name} knows"
            )
            raise InputError(f"{field}.{form}", read.largest, expected)
        return read

    def _by_form(self, form: str, body: Any, field: str) -> LengthDistribution:
        kind = LENGTH_DISTRIBUTIONS[form]
        if kind is SampledLength and isinstance(body, str):
            file = str(self._base / body)
            return constructed(SampledLength, body, field, lengths=_samples(file, field), file=file)
        if kind in (ConstantLength, WeightedLength, SampledLength):  # what stands there is the first field
            (first, *_) = msgspec.structs.fields(kind)
            value = self._decoder.decode(first.type, body, field)
            return constructed(kind, body, field, **{first.name: value})
        return self._decoder.decode_struct(kind, body, field)

    def _check_complete(self, workload: Workload, lengths: Mapping[str, LengthDistribution]) -> None:
        missing = [name for name in self._longest if name not in lengths]
        if missing and not _trace_has_lengths(workload):
            raise unknown_lengths(missing, workload)


def unknown_lengths(models: Sequence[str], workload: Workload) -> InputError:
    expected = f"how long the requests to {', '.join(models)} are: {LENGTH_FORM}"
    if workload.file is not None:
        expected += "; or a column `length` in the trace"
    return InputError("workload.lengths", None, expected)


def _numbered(body: Any, grid: SizeGrid, field: str) -> Any:
    """Return what is said of lengths with numbers in the place of sizes such as 64x128."""
    if isinstance(body, dict):
        return {_number(key, grid, f"{field}.{key}"): value for key, value in body.items()}
    if isinstance(body, list):
        return [_number(size, grid, f"{field}[{place}]") for place, size in enumerate(body)]
    return _number(body, grid, field)


def _number(size: Any, grid: SizeGrid, field: str) -> Any:
    if not isinstance(size, str) or not size[:1].isdecimal():  # such as a file of numbers
        return size
    largest = tuple(axis[-1] for axis in grid.axes)
    try:
        shape = size_of(size)
    except InputError as error:
        raise error.at(field) from None
    if len(shape) != len(largest) or any(map(gt, shape, largest)):
        raise InputError(field, size, f"a size of at most {written(largest)}, as the profile has it")
    return grid.number(shape)


def _trace_has_lengths(workload: Workload) -> bool:
    if workload.file is None:
        return False
    from astrarium.serving.traces import read_trace

    return read_trace(workload.file).length is not None


def _form_of(raw: Any, field: str) -> str:
    if not isinstance(raw, dict) or len(raw) != 1:
        raise InputError(field, raw, LENGTH_FORM)
    form = str(next(iter(raw)))
    if form not in LENGTH_DISTRIBUTIONS:
        names = list(LENGTH_DISTRIBUTIONS)
        raise InputError(f"{field}.{form}", raw[form], f"{LENGTH_FORM}{did_you_mean(names, form)}")
    return form


def _samples(file: str, field: str) -> tuple[int, ...]:
    """Return lengths from a file: a whole number a line, after a header or none."""
    if not Path(file).is_file():
        raise InputError(field, file, f"a file of lengths, one a line; there is none at {file}")
    lines = [line.strip() for line in read_text(Path(file), "a text file of lengths").splitlines()]
    lengths = []
    for number, text in enumerate(lines, 1):
        if text.isdecimal() and int(text) > 0:
            lengths.append(int(text))
        elif text and number > 1:
            raise InputError(f"line {number}", text, "a whole number of at least 1: a length", file)
    return tuple(lengths)
