"""The emulated GPU takes exactly as long as the profile says, and returns a batch as it went in.

Options, filled from the model's profile:
    table: [0, 6125000, 7178000]      nanoseconds by batch size
    dynamic: {c0, c1, applications: [[times alone], ...], seed}
With the dynamic form each item draws the time it takes alone from its application's list, and a batch of k
takes c0 + c1 k max(drawn), as core.profiles.Dynamic has it.
    lengths: a profile by length, as core.profiles.ByLength has it
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time
from astrarium.serving.live.backends import backends
from astrarium.serving.live.backends.contract import Batch, ModelFailed, ModelFiles, Place, Ran, Result, Timed
from astrarium.serving.live.backends.contract import Interrupted as Interrupted
from astrarium.serving.live.backends.precise_wait import Wait, fine_timers, wait_until
from astrarium.serving.live.backends.stacking import split
from astrarium.serving.live.fills import axes_of, sent
from astrarium.serving.live.tensors import BYTES, DATATYPES, Array, TensorSpec

INPUT = TensorSpec("INPUT", "FP32", (-1,))
Times = Callable[[Batch], tuple[Time, Sequence[Time]]]  # of the whole, and of each item alone


class EmulatedBatch:
    """An emulated batch starts when the GPU is free, whatever the host is doing then.

    It takes exactly what the profile says, and follows the one before it without a gap.
    """

    def __init__(self, result: Result, not_before: Time, takes: Time, wait: Wait) -> None:
        self._result = result
        self._not_before = not_before
        self._takes = takes
        self._wait = wait

    def wait(self, free: Time) -> Ran:
        began = max(free, self._not_before)
        ended = began + self._takes
        if not self._wait(ended):
            raise Interrupted("the batch was stopped")
        return Ran(self._result, began, ended)


@backends.register("emulated")
class EmulatedModel:
    """An emulated model waits instead of computing; it has no use for what the server fills.

    `wait_until` may be replaced by the worker, to be interrupted while a batch runs (see precise_wait.py).
    """

    def __init__(self, files: ModelFiles, place: Place) -> None:
        self.inputs = files.inputs or (INPUT,)
        self._sent = sent(self.inputs)
        self.outputs = files.outputs or (TensorSpec("OUTPUT", self._sent[0].datatype, self._sent[0].shape),)
        self.ignores_padding = True
        self.wait_until: Wait = wait_until
        self._times = _times(files, place)
        self._answers = [_like(output, self._sent) for output in self.outputs]
        self.timed = self._timed(files)
        fine_timers()

    def warm_up(self, sizes: Sequence[int]) -> None:
        """Do nothing: the model is as fast at first as it is later."""

    def run(self, batch: Batch) -> Result:
        return self.launch(batch, time.monotonic_ns()).wait(0).result

    def launch(self, batch: Batch, not_before: Time) -> EmulatedBatch:
        whole, own = self._times(batch)
        answers = zip(self.outputs, self._answers, strict=True)
        outputs = {spec.name: _answer(spec, source, batch) for spec, source in answers}
        return EmulatedBatch(Result(outputs, own), not_before, whole, self.wait_until)

    def _timed(self, files: ModelFiles) -> Timed | None:
        names = [spec.name for spec in self._sent]
        varies = "dynamic" in files.options or "lengths" in files.options
        if varies or any(spec.datatype == BYTES for spec in self._sent + self.outputs):
            return None
        sources = [-1 if name is None else names.index(name) for name in self._answers]
        return Timed(files.options["table"], sources)

    def close(self) -> None:
        """Do nothing: nothing is held."""

    @staticmethod
    def check(files: ModelFiles) -> Mapping[str, Any]:
        for name, value in files.options.items():
            raise InputError(name, value, "no options: an emulated model follows its profile")
        return {}


def _times(files: ModelFiles, place: Place) -> Times:
    if "dynamic" in files.options:
        return _drawn(files.options["dynamic"], place)
    if "lengths" in files.options:
        return _by_length(files.options["lengths"], files.inputs or (INPUT,))
    if "table" not in files.options:
        raise InputError("table", None, f"a table of times for the emulated model {files.name}")
    return _listed(tuple(files.options["table"]))


def _listed(table: tuple[Time, ...]) -> Times:
    def times(batch: Batch) -> tuple[Time, Sequence[Time]]:
        if not 0 < batch.size < len(table):
            raise ModelFailed(f"a batch of {batch.size}: the profile ends at {len(table) - 1}")
        return table[batch.size], ()

    return times


def _by_length(plain: Mapping[str, Any], inputs: Sequence[TensorSpec]) -> Times:
    import msgspec

    from astrarium.core.profiles import ByLength, BySize

    profile = msgspec.convert(plain, BySize if "sizes" in plain else ByLength)
    number = profile.grid.number if isinstance(profile, BySize) else None

    def times(batch: Batch) -> tuple[Time, Sequence[Time]]:
        runs = profile.runs(_lengths(batch, inputs) if number is None else _numbers(batch, inputs, number))
        return sum(profile.times(length)[size - 1] for size, length in runs), ()

    return times


def _lengths(batch: Batch, inputs: Sequence[TensorSpec]) -> list[int]:
    """Return how long each item is: as its longest input is."""
    longest = [1] * batch.size
    for spec in sent(inputs):
        shapes = batch.own_shapes.get(spec.name) or [batch.inputs[spec.name].shape[1:]] * batch.size
        sizes = [prod(shape[place] for place in spec.open_dimensions) for shape in shapes]
        longest = [max(pair) for pair in zip(longest, sizes, strict=True)]
    return longest


def _numbers(batch: Batch, inputs: Sequence[TensorSpec], number: Callable[[Sequence[int]], int]) -> list[int]:
    """Return the number of each item's shape."""
    sizes = []
    for (name, place), *_ in axes_of(inputs):
        shapes = batch.own_shapes.get(name) or [batch.inputs[name].shape[1:]] * batch.size
        sizes.append([shape[place] for shape in shapes])
    return [number(own) for own in zip(*sizes, strict=True)]


def _drawn(options: Mapping[str, Any], place: Place) -> Times:
    """Return a function that draws single times; every GPU draws for itself."""
    chance = random.Random(f"{options.get('seed', 0)}/{place.gpu}")
    c0 = options.get("c0", 0)
    c1 = options.get("c1", 1.0)
    known: Sequence[Sequence[Time]] = options["applications"]

    def times(batch: Batch) -> tuple[Time, Sequence[Time]]:
        own = [chance.choice(known[application]) for application in batch.applications or [0] * batch.size]
        return max(1, c0 + round(c1 * batch.size * max(own))), own

    return times


def _like(output: TensorSpec, inputs: Sequence[TensorSpec]) -> str | None:
    """Return the input that can be handed back as this output."""
    alike = (spec for spec in inputs if (spec.datatype, spec.shape) == (output.datatype, output.shape))
    return next((spec.name for spec in alike), None)


def _answer(output: TensorSpec, source: str | None, batch: Batch) -> Array | Sequence[Array]:
    """Return the input itself, or else zeros, with one element where the size is open."""
    if source is not None:
        array = batch.inputs[source]
        own = batch.own_shapes.get(source)
        return (split(array, output.shape, own, array.shape[1:]) if own else None) or array
    shape = (batch.size, *(max(1, size) if size < 0 else size for size in output.shape))
    empty = b"" if output.datatype == "BYTES" else 0
    return np.full(shape, empty, DATATYPES[output.datatype])
