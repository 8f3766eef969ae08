"""Runners run PyTorch; on a GPU with pinned buffers, copies that do not block, and a graph for each size.

Launching a small network kernel by kernel can take longer than running it; a graph launches all of it at
once. A graph is captured for fixed sizes and fixed addresses, so a batch is written into the static inputs
and runs in the smallest graph that has room for it, the rest of which is zeros.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from astrarium.serving.live.backends.answers import named
from astrarium.serving.live.backends.torch.programs import Program
from astrarium.serving.live.tensors import DATATYPES, Array, TensorSpec

# PyTorch on the processor.


class CpuRunner:
    def __init__(self, torch: Any, call: Callable[..., Any], names: Sequence[str], threads: int) -> None:
        self._torch, self._call, self._names = torch, call, names
        torch.set_num_threads(threads)

    def capture(self, sizes: Sequence[int], model: str) -> None:
        """Capture nothing: launching costs little here."""

    def staging(self, size: int) -> Sequence[Array | None]:
        """Return no memory: inputs need none of their own here."""
        return ()

    def run(self, arrays: Sequence[Array], size: int) -> dict[str, Array]:
        with self._torch.inference_mode():
            tensors = [self._torch.from_numpy(writable(array)) for array in arrays]
            answer = named(self._call(*tensors), self._names)
            return {name: portable(self._torch, tensor).numpy() for name, tensor in answer.items()}

    def close(self) -> None:
        del self._call


def writable(array: Array) -> Array:
    """Return an array that can be written, copied if need be: PyTorch has no read-only tensors."""
    return array if array.flags.writeable else array.copy()


def portable(torch: Any, tensor: Any) -> Any:
    """Return a tensor in a type that numpy has: it has no bfloat16."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


_BEFORE_CAPTURE = 3  # runs in which libraries choose their kernels and allocate


class Captured(NamedTuple):
    graph: Any
    outputs: Mapping[str, Any]  # static, as the inputs are


class InputBuffers(NamedTuple):
    """An input's buffers for the largest batch: in pinned memory (as tensor and array), and on the GPU."""

    pinned: Any
    array: Array
    static: Any


class CudaRunner:
    def __init__(self, torch: Any, program: Program, names: Sequence[str], device: str, largest: int) -> None:
        self._torch, self._call, self._names = torch, program.call, names
        self._device, self._largest = torch.device(device), largest
        self._stream = torch.cuda.Stream(self._device)
        self._graphs: dict[int, Captured] = {}
        self._pinned: dict[str, Any] = {}  # outputs on their way back
        self._inputs = [self._room(spec) for spec in program.inputs]

    def run(self, arrays: Sequence[Array], size: int) -> dict[str, Array]:
        with self._torch.inference_mode(), self._torch.cuda.stream(self._stream):
            room = min((captured for captured in self._graphs if captured >= size), default=None)
            if room is None:
                outputs = self._answer(self._sent(arrays, size))
            else:
                self._send(arrays, size, room)
                self._graphs[room].graph.replay()
                outputs = dict(self._graphs[room].outputs)
            back = {name: self._fetched(name, tensor, size) for name, tensor in outputs.items()}
        self._stream.synchronize()
        return {name: tensor.numpy() for name, tensor in back.items()}

    def staging(self, size: int) -> Sequence[Array | None]:
        """Return the pinned memory of each input, as far as a batch of this size needs it."""
        if size > self._largest:
            return ()
        return [None if room is None else room.array[:size] for room in self._inputs]

    def capture(self, sizes: Sequence[int], model: str) -> None:
        """Capture a graph for each size, large ones first: small ones find room in the memory of those."""
        if any(room is None for room in self._inputs):
            return  # open dimensions: no two batches are alike
        pool = self._torch.cuda.graph_pool_handle()
        for size in sorted((size for size in sizes if size <= self._largest), reverse=True):
            try:
                self._graphs[size] = self._captured(size, pool)
            except Exception as error:
                reason = f"{model}: runs without CUDA graphs, capturing a batch of {size} failed: {error}"
                warnings.warn(reason, stacklevel=2)
                self._graphs.clear()
                self._stream = self._torch.cuda.Stream(self._device)  # the old one may be left mid-capture
                return

    def close(self) -> None:
        self._graphs.clear()
        self._pinned.clear()
        self._inputs = []
        del self._call

    def _room(self, spec: TensorSpec) -> InputBuffers | None:
        """Return an input's buffers for the largest batch; None where its size is open."""
        if spec.item_bytes is None:
            return None
        kind = self._torch.from_numpy(_empty(spec)).dtype
        shape = (self._largest, *spec.shape)
        pinned = self._torch.zeros(shape, dtype=kind, pin_memory=True)
        return InputBuffers(pinned, pinned.numpy(), self._torch.zeros(shape, dtype=kind, device=self._device))

    def _captured(self, size: int, pool: Any) -> Captured:
        torch = self._torch
        fixed = [room.static[:size] for room in self._inputs if room is not None]
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for _ in range(_BEFORE_CAPTURE):
                self._answer(fixed)
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                outputs = self._answer(fixed)
        return Captured(graph, outputs)

    def _answer(self, tensors: Sequence[Any]) -> dict[str, Any]:
        answer = named(self._call(*tensors), self._names)
        return {name: portable(self._torch, tensor) for name, tensor in answer.items()}

    def _sent(self, arrays: Sequence[Array], size: int) -> list[Any]:
        """Copy a batch to the GPU, through the static inputs where it fits."""
        if size <= self._largest and all(room is not None for room in self._inputs):
            self._send(arrays, size, size)
            return [room.static[:size] for room in self._inputs if room is not None]
        return [self._torch.from_numpy(writable(array)).to(self._device) for array in arrays]

    def _send(self, arrays: Sequence[Array], size: int, padded: int) -> None:
        for array, room in zip(arrays, self._inputs, strict=True):
            assert room is not None
            if array.ctypes.data != room.array.ctypes.data:  # else it was gathered there
                room.array[:size] = array
            static = room.static
            static[:size].copy_(room.pinned[:size], non_blocking=True)
            if padded > size:
                static[size:padded].zero_()  # not what the last batch left there

    def _fetched(self, name: str, tensor: Any, size: int) -> Any:
        """Return a pinned copy, complete once the stream is."""
        pinned = self._pinned.get(name)
        shape = tuple(tensor.shape[1:])
        if pinned is None or pinned.dtype != tensor.dtype or pinned.shape[1:] != shape or len(pinned) < size:
            room = (max(size, self._largest), *shape)
            pinned = self._pinned[name] = self._torch.empty(room, dtype=tensor.dtype, pin_memory=True)
        return pinned[:size].copy_(tensor[:size], non_blocking=True)


def _empty(spec: TensorSpec) -> Array:
    import numpy as np

    return np.empty(0, DATATYPES[spec.datatype])
