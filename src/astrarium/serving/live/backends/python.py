"""The Python backend runs a callable as a model: a function, or a class constructed once in every worker.

    backend: {python: words.py:detect}
    backend: {python: {model: words.py:Detector, alphabet: latin}}

The class gets the other options as keyword arguments, and its objects are called like the function: with one
array for each input, by name, the batch first (BYTES inputs as object arrays of bytes). These cannot be
written, in whatever company a request runs: some are the client's own, which may be run again. The answer is
a dictionary of arrays, a single array, or a tuple in the order of the outputs.

A callable may carry `applications`: {name: generator -> inputs of one request}. `astrarium profile` measures
each of them (the generator is a numpy one).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from astrarium.core.errors import InputError
from astrarium.serving.live.backends import backends, examples, references
from astrarium.serving.live.backends.answers import result
from astrarium.serving.live.backends.blame import blamed
from astrarium.serving.live.backends.contract import Batch, ModelFailed, ModelFiles, Place, Result
from astrarium.serving.live.tensors import Array

_UNKNOWN = "a list such as [{name: TEXT, datatype: BYTES, shape: [1]}]: a Python callable cannot tell"


@backends.register("python")
class PythonModel:
    packs = True

    def __init__(self, files: ModelFiles, place: Place) -> None:
        reference = files.options.get("model")
        loaded = references.loaded(reference, files.base, "model")
        rest = {name: value for name, value in files.options.items() if name != "model"}
        self._function = _ready(loaded, rest, reference)
        self.inputs = files.inputs
        self.outputs = files.outputs
        self.applications: Mapping[str, Any] = getattr(self._function, "applications", {})

    def warm_up(self, sizes: Sequence[int]) -> None:
        for size in sizes:
            self.run(examples.batch(self.inputs, size, np.random.default_rng(0)))

    def run(self, batch: Batch) -> Result:
        try:
            answer = self._function(**_read_only(batch.inputs))
        except Exception as error:
            raise ModelFailed(blamed(error)) from error
        return result(answer, self.outputs, batch)

    def close(self) -> None:
        """Close the model's object, where it has a `close` of its own."""
        close = getattr(self._function, "close", None)
        if callable(close):
            close()

    @staticmethod
    def prepare(files: ModelFiles, code: bool) -> None:
        """Import what the model's code imports, and leave that code alone: it may use the GPU at once."""
        if code:
            references.import_needed(files.options.get("model"), files.base, "model")

    @staticmethod
    def check(files: ModelFiles) -> Mapping[str, Any]:
        for field in ("inputs", "outputs"):
            if not getattr(files, field):
                raise InputError(field, None, _UNKNOWN)
        reference = references.resolved(files.options.get("model"), files.base, "model")
        return {**files.options, "model": reference}


def _read_only(inputs: Mapping[str, Array]) -> dict[str, Array]:
    views = {name: array.view() for name, array in inputs.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def _ready(loaded: Any, options: Mapping[str, Any], reference: Any) -> Any:
    """Return the callable to call with a batch."""
    if inspect.isclass(loaded):
        try:
            loaded = loaded(**options)
        except Exception as error:
            raise ModelFailed(f"{reference} cannot be constructed: {blamed(error)}") from error
    elif options:
        name, value = next(iter(options.items()))
        raise InputError(name, value, f"no options but model: {reference} is not a class")
    if not callable(loaded):
        raise InputError("model", reference, "a function, or a class whose objects can be called")
    return loaded
