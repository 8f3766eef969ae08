"""The ONNX Runtime backend runs model files, which tell their inputs and outputs.

    backend: {onnx: digits.onnx}
    backend: {onnx: {model: digits.onnx, threads: 2, providers: [CUDAExecutionProvider], batched: true}}

The first dimension of every input and output is the batch and must be open. A model whose first dimension is
fixed, or that has no batch at all, runs with `batched: false`: item by item (a leading 1 everywhere counts as
a batch of one). With `pack`, the first dimension of what is declared open is that of all items together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from astrarium.core.errors import InputError
from astrarium.serving.live import fills
from astrarium.serving.live.backends import backends, examples, options
from astrarium.serving.live.backends.answers import result
from astrarium.serving.live.backends.contract import Batch, ModelFailed, ModelFiles, Place, Result, package
from astrarium.serving.live.backends.declared import chosen
from astrarium.serving.live.backends.references import existing
from astrarium.serving.live.tensors import BYTES, Array, TensorSpec

_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(string)": BYTES,
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    **{f"tensor(int{bits})": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"tensor(uint{bits})": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}


@backends.register("onnx")
class OnnxModel:
    packs = True

    def __init__(self, files: ModelFiles, place: Place) -> None:
        self._session = _session(files, place)
        batched = options.flag(files.options, "batched", True)
        nodes = {"inputs": self._session.get_inputs(), "outputs": self._session.get_outputs()}
        self._single = not batched and all(
            _shape(node)[:1] == (1,) for side in nodes.values() for node in side
        )
        drop = 1 if batched or self._single else 0
        tensors = {side: _specs(side, named, drop, batched) for side, named in nodes.items()}
        if files.pack:
            tensors = {side: _unpacked(tensors[side], getattr(files, side)) for side in tensors}
        inputs = chosen("inputs", files.inputs, tensors["inputs"], all_needed=True)
        self.inputs = fills.marked(inputs, files.lengths, files.mask, files.offsets, files.pack)
        self.outputs = chosen("outputs", files.outputs, tensors["outputs"], all_needed=False)
        self._run = self._run_batch if batched else self._run_one_by_one

    def warm_up(self, sizes: Sequence[int]) -> None:
        for size in sizes:
            self.run(examples.batch(self.inputs, size, np.random.default_rng(0)))

    def run(self, batch: Batch) -> Result:
        feed = {spec.name: _fed(batch.inputs[spec.name], spec) for spec in self.inputs}
        return result(self._run(feed, batch.size), self.outputs, batch)

    def close(self) -> None:
        del self._session

    @staticmethod
    def prepare(files: ModelFiles, code: bool) -> None:
        package("onnxruntime", "onnx")

    @staticmethod
    def check(files: ModelFiles) -> Mapping[str, Any]:
        settings = files.options
        options.check_known(settings, ("model", "threads", "providers", "batched"))
        options.count(settings, "threads", 1)
        batched = options.flag(settings, "batched", True)
        if files.pack and not batched:
            raise InputError("batched", False, "true beside `pack`: items one after another are a batch")
        if files.pack and not files.outputs:
            raise InputError("outputs", None, "a list of the outputs: with `pack`, open ones come packed")
        _check_providers(settings.get("providers"))
        return {**settings, "model": str(existing(settings.get("model"), files.base, "model"))}

    def _run_batch(self, feed: dict[str, Array], size: int) -> dict[str, Array]:
        names = [spec.name for spec in self.outputs]
        try:
            return dict(zip(names, self._session.run(names, feed), strict=True))
        except Exception as error:
            raise ModelFailed(f"ONNX Runtime: {error}") from error

    def _run_one_by_one(self, feed: dict[str, Array], size: int) -> dict[str, Array]:
        answers = []
        for item in range(size):
            at = slice(item, item + 1) if self._single else item
            answers.append(self._run_batch({name: array[at] for name, array in feed.items()}, 1))
        join = np.concatenate if self._single else np.stack
        return {spec.name: join([answer[spec.name] for answer in answers]) for spec in self.outputs}


def _session(files: ModelFiles, place: Place) -> Any:
    runtime = package("onnxruntime", "onnx")
    path = existing(files.options.get("model"), files.base, "model")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = options.count(files.options, "threads", 1)
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    providers = _providers(runtime, files.options.get("providers"), place)
    try:
        return runtime.InferenceSession(str(path), settings, providers=providers)
    except Exception as error:
        raise InputError(
            "model", str(path), f"a model that ONNX Runtime can load; it says: {error}"
        ) from error


def _providers(runtime: Any, wanted: Sequence[str] | None, place: Place) -> list[str]:
    there = runtime.get_available_providers()
    for place_in_list, name in enumerate(wanted or ()):
        if name not in there:
            raise InputError(f"providers[{place_in_list}]", name, f"one of {', '.join(there)}")
    if wanted:
        return list(wanted)
    on_gpu = place.device.startswith("cuda") and "CUDAExecutionProvider" in there
    return ["CUDAExecutionProvider", "CPUExecutionProvider"] if on_gpu else ["CPUExecutionProvider"]


def _check_providers(wanted: Any) -> None:
    if wanted is not None and (
        not isinstance(wanted, list | tuple) or not all(isinstance(name, str) for name in wanted)
    ):
        raise InputError("providers", wanted, "a list of names, such as [CPUExecutionProvider]")


def _specs(side: str, nodes: Sequence[Any], drop: int, batched: bool) -> tuple[TensorSpec, ...]:
    for node in nodes:
        if node.type not in _DATATYPES:
            raise InputError("model", node.type, f"a model whose {side} are tensors: {node.name} is none")
        if batched and _shape(node)[:1] != (-1,):
            raise InputError("model", f"{node.name}{node.shape}", f"{_NO_BATCH}; or batched: false")
    return tuple(TensorSpec(node.name, _DATATYPES[node.type], _shape(node)[drop:]) for node in nodes)


def _unpacked(tensors: Sequence[TensorSpec], declared: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return a file's tensors as their items are: what is *declared* to be open is packed in the file."""
    packed = {spec.name for spec in declared if spec.open_dimensions}
    return tuple(replace(one, shape=(-1, *one.shape)) if one.name in packed else one for one in tensors)


_NO_BATCH = "a model whose first dimension is the batch and open (export it with a dynamic first axis)"


def _shape(node: Any) -> tuple[int, ...]:
    """Return a node's shape; named and unknown sizes are open."""
    return tuple(size if isinstance(size, int) else -1 for size in node.shape)


def _fed(array: Array, spec: TensorSpec) -> Array:
    if spec.datatype != BYTES:
        return array
    texts = np.empty(array.size, np.object_)
    texts[:] = [_text(element) for element in array.ravel()]
    return texts.reshape(array.shape)


def _text(element: Any) -> Any:
    """Return a text; what is no UTF-8 in it becomes U+FFFD: others in its batch must not fail for it."""
    return element.decode(errors="replace") if isinstance(element, bytes) else element
