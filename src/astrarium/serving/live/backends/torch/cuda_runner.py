"""On a GPU, PyTorch runs with pinned buffers, copies beside the computing, and a graph for each size.

Launching a small network kernel by kernel can take longer than running it; a graph launches all of it at
once. A graph is captured for fixed sizes and fixed addresses, so a batch is written into the static inputs
and runs in the smallest graph that has room for it, the rest of which is zeros.

A GPU has a stream for copies to it, one for computing and one for copies from it. A batch that is launched
goes through all three by itself: while one is computed, the next is copied to the GPU, and the one before
from there. Each has a slot of its own for that; from there to the static inputs, and from the static outputs
on, copies take the GPU some microseconds (10 MB), much less memory than graphs for every slot.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from time import monotonic_ns
from typing import Any, NamedTuple

from astrarium.core.optional import extension
from astrarium.core.quantities import Time
from astrarium.serving.live.backends.answers import named
from astrarium.serving.live.backends.contract import GraphRunner
from astrarium.serving.live.backends.torch.graphs import (
    IN_FLIGHT,
    Captured,
    CapturedGraphs,
    HandedOver,
)
from astrarium.serving.live.backends.torch.programs import Program
from astrarium.serving.live.backends.torch.streams import GpuClock, elapsed, streams_of
from astrarium.serving.live.backends.torch.tensors import array_of, kind, portable, tensor_of
from astrarium.serving.live.tensors import BYTES, Array, TensorSpec

_BEFORE_CAPTURE = 3  # runs in which libraries choose their kernels and allocate


class InputBuffers(NamedTuple):
    """An input's buffers for the largest batch: in pinned memory (as tensor and array), and on the GPU."""

    pinned: Any
    array: Array
    staged: Any


class CudaBatch:
    """A batch with the GPU has events for how far it has come; `done` says that the host has its answers."""

    def __init__(self, torch: Any, size: int) -> None:
        self._torch = torch
        self.size = size
        self.copied = torch.cuda.Event()
        self.began, self.computed, self.done = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        self.on_gpu: list[Any] = []  # tensors that the GPU may still be using
        self.outputs: dict[str, Any] = {}  # pinned

    def arrays(self) -> dict[str, Array]:
        return {name: array_of(self._torch, tensor) for name, tensor in self.outputs.items()}


class Slot:
    """A slot has the buffers of one batch in flight."""

    def __init__(self, inputs: Sequence[InputBuffers | None]) -> None:
        self.inputs = inputs
        self.outputs: dict[str, Any] = {}  # pinned
        self.batch: CudaBatch | None = None  # the last one

    def free(self) -> None:
        """Wait until the last batch has left the buffers: one that was cancelled may be in there still."""
        if self.batch is not None:
            self.batch.done.synchronize()
            self.batch = None


class CudaRunner:
    """A runner for a GPU launches batches; the arrays of an answer are valid for IN_FLIGHT - 1 more."""

    def __init__(
        self, torch: Any, program: Program, outputs: Sequence[TensorSpec], device: str, largest: int
    ) -> None:
        self._torch = torch
        self._call = program.call
        self._names = [spec.name for spec in outputs]
        self._types = {spec.name: kind(torch, spec) for spec in outputs if spec.datatype != BYTES}
        self._device = torch.device(device)
        self.largest = largest
        self._specs = program.inputs
        self._streams = streams_of(torch, self._device)
        self._slots = [Slot([self._buffers(spec) for spec in self._specs]) for _ in range(IN_FLIGHT)]
        self._next = 0
        self._static: list[Any] = []
        self._graphs: dict[int, Captured] = {}  # replaced, never changed: another thread adds to them
        self._stream = torch.cuda.Stream(self._device)
        self._pool = torch.cuda.graph_pool_handle()
        self._capturing = Lock()
        self._handed_over: HandedOver | None = None
        self._clock = GpuClock()
        self._takes: dict[int, Time] = {}  # by the size of the graph, or of the batch

    def run(self, arrays: Sequence[Array], size: int) -> dict[str, Array]:
        batch = self.launch(arrays, size)
        batch.done.synchronize()
        self.spans(batch, monotonic_ns())
        return batch.arrays()

    def launch(self, arrays: Sequence[Array], size: int) -> CudaBatch:
        slot = self._slots[self._next]
        batch = CudaBatch(self._torch, size)
        slot.free()
        try:
            with self._torch.inference_mode():
                self._compute(self._copy_in(slot, arrays, batch), batch)
                self._copy_out(slot, batch)
        except Exception:
            self._streams.copy_in.synchronize()  # the slot is for the next batch
            raise
        slot.batch, self._next = batch, (self._next + 1) % len(self._slots)
        return batch

    def expected(self, size: int) -> Time:
        """Return how long the GPU will take for a batch; 0 where nobody knows yet."""
        return self._takes.get(self._graph_size(size), 0)

    def spans(self, batch: CudaBatch, seen: Time) -> tuple[Time, Time]:
        """Return when the GPU began to compute a batch, and ended, of which the host has *seen* all now."""
        done = self._clock.when(batch.done, seen)
        ended = done - elapsed(batch.computed, batch.done)
        began = ended - elapsed(batch.began, batch.computed)
        self._learn(self._graph_size(batch.size), done - began)
        return began, ended

    def staging(self, size: int) -> Sequence[Array | None]:
        """Return the pinned memory of each input of the next batch, as far as one of this size needs it."""
        if size > self.largest:
            return ()
        slot = self._slots[self._next]
        slot.free()
        return [None if buffers is None else buffers.array[:size] for buffers in slot.inputs]

    def hand_over(self, model: str, outputs: Sequence[TensorSpec]) -> GraphRunner | None:
        """Return what runs the graphs without Python; None where nothing can."""
        if not self._graphs or (module := extension("_worker")) is None:
            return None
        graphs = CapturedGraphs(self._torch, self._device, self._graphs, self._static, self._specs, outputs)
        with self._torch.cuda.device(self._device):  # native code takes the context that it finds
            if why := graphs.needs_python():
                warnings.warn(f"{model}: its batches are launched by Python, since {why}", stacklevel=2)
                return None
            self._handed_over = graphs.handed_over(module, self._streams.native(module), self.largest)
        return self._handed_over.runner

    def capture(self, sizes: Sequence[int], model: str) -> bool:
        """Capture a graph for each size, large ones first: small ones find room in the memory of those.

        Nothing runs in these graphs yet. Return whether the runs of one size warm up all others, too.
        """
        if any(spec.item_bytes is None for spec in self._specs):
            return False  # open dimensions: no two batches are alike
        torch = self._torch
        with torch.cuda.stream(self._stream):
            self._static = [self._on_gpu(torch.zeros, spec) for spec in self._specs]
        for size in sorted((size for size in sizes if size <= self.largest), reverse=True):
            try:
                self._warm([static[:size] for static in self._static], self._stream)
                torch.cuda.empty_cache()  # what was used to warm up becomes the graph's
                self._graphs = {**self._graphs, size: self._captured(size)}
            except Exception as error:
                reason = f"{model}: runs without CUDA graphs, capturing a batch of {size} failed: {error}"
                warnings.warn(reason, stacklevel=2)
                self._graphs = {}
                return False
        return bool(self._graphs)

    def capture_more(self, size: int, model: str) -> bool:
        """Capture one more graph while batches run in the others; return whether there may be further ones.

        Capturing only records. Warming up computes: with inputs of its own, and in the default stream, where
        nothing is captured. Libraries have memory for each stream (the workspace of cuBLAS), and graphs go on
        using that of the stream in which they were captured.
        """
        with self._capturing:
            if not self._graphs:
                return False  # closed meanwhile
            try:
                captured = self._captured_aside(size)
            except Exception as error:
                reason = f"{model}: batches of {size} run in a larger graph, capturing one failed: {error}"
                warnings.warn(reason, stacklevel=2)
                return False
            self._graphs = {**self._graphs, size: captured}
            if self._handed_over is not None:
                self._handed_over.add(size, captured)
        return True

    def close(self) -> None:
        with self._capturing:
            self._graphs = {}
        if self._handed_over is not None:
            self._handed_over.runner.finish()
        for slot in self._slots:
            slot.free()
        self._static = []
        self._slots = []
        self._handed_over = None
        del self._call

    def _learn(self, graph_size: int, took: Time) -> None:
        known = self._takes.get(graph_size, took)
        # Expecting an end too early costs less than too late.
        self._takes[graph_size] = min(took, known + known // 8)

    def _graph_size(self, size: int) -> int:
        """Return the size of the graph that a batch runs in; without one that large, its own."""
        return _smallest_graph(self._graphs, size)

    def _buffers(self, spec: TensorSpec) -> InputBuffers | None:
        """Return an input's buffers for the largest batch; None where its size is open."""
        if spec.item_bytes is None:
            return None
        shape = (self.largest, *spec.shape)
        pinned = self._torch.zeros(shape, dtype=kind(self._torch, spec), pin_memory=True)
        return InputBuffers(pinned, array_of(self._torch, pinned), self._on_gpu(self._torch.empty, spec))

    def _on_gpu(self, make: Callable[..., Any], spec: TensorSpec) -> Any:
        return self._rows(make, spec, self.largest)

    def _rows(self, make: Callable[..., Any], spec: TensorSpec, size: int) -> Any:
        return make((size, *spec.shape), dtype=kind(self._torch, spec), device=self._device)

    def _warm(self, inputs: Sequence[Any], stream: Any) -> None:
        """Run the model a few times, and wait for it."""
        with self._torch.inference_mode(), self._torch.cuda.stream(stream):
            for _ in range(_BEFORE_CAPTURE):
                self._answer(inputs)
            stream.synchronize()

    def _captured(self, size: int) -> Captured:
        """Return the graph of a model that is warm for this size.

        `torch.cuda.graph` would wait until the whole GPU is idle, and give memory back: batches go on here.
        """
        torch = self._torch
        graph = self._torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            # What other threads do meanwhile, which run batches, must not break the capture.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs = self._answer([static[:size] for static in self._static])
            finally:
                graph.capture_end()
        return Captured(graph, outputs)

    def _captured_aside(self, size: int) -> Captured:
        torch = self._torch
        aside = self._torch.cuda.default_stream(self._device)
        with torch.cuda.stream(aside):
            inputs = [self._rows(torch.zeros, spec, size) for spec in self._specs]
        self._warm(inputs, aside)
        return self._captured(size)

    def _answer(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs, floating ones in the type that was declared."""
        answer = named(self._call(*tensors), self._names)
        return {name: self._declared(name, portable(self._torch, one)) for name, one in answer.items()}

    def _declared(self, name: str, tensor: Any) -> Any:
        wanted = self._types.get(name, tensor.dtype)
        both = wanted.is_floating_point and tensor.is_floating_point()
        return tensor.to(wanted).contiguous() if both else tensor.contiguous()

    def _copy_in(self, slot: Slot, arrays: Sequence[Array], batch: CudaBatch) -> list[Any]:
        """Copy a batch to the GPU, through the slot where it fits; return it as tensors there."""
        stream = self._streams.copy_in
        there = [buffers for buffers in slot.inputs if buffers is not None]
        with self._torch.cuda.stream(stream):
            if batch.size <= self.largest and len(there) == len(arrays):
                tensors = [_sent(*pair, batch.size) for pair in zip(there, arrays, strict=True)]
            else:
                sources = [tensor_of(self._torch, array) for array in arrays]
                tensors = [tensor.to(self._device, non_blocking=True) for tensor in sources]
            batch.copied.record(stream)
        return tensors

    def _compute(self, tensors: Sequence[Any], batch: CudaBatch) -> None:
        stream = self._streams.compute
        size = batch.size
        with self._torch.cuda.stream(stream):
            stream.wait_event(batch.copied)
            batch.began.record(stream)
            graphs = self._graphs
            graph_size = _smallest_graph(graphs, size)
            graph = graphs.get(graph_size)
            outputs = self._replayed(graph, tensors, size, graph_size) if graph else self._answer(tensors)
            batch.computed.record(stream)
        batch.on_gpu = [*tensors, *outputs.values()]
        batch.outputs = outputs

    def _replayed(
        self, captured: Captured, tensors: Sequence[Any], size: int, graph_size: int
    ) -> dict[str, Any]:
        for static, tensor in zip(self._static, tensors, strict=True):
            static[:size].copy_(tensor, non_blocking=True)
            if graph_size > size:
                static[size:graph_size].zero_()  # not what the last batch left there
        captured.graph.replay()
        return {name: tensor[:size].clone() for name, tensor in captured.outputs.items()}

    def _copy_out(self, slot: Slot, batch: CudaBatch) -> None:
        stream = self._streams.copy_out
        with self._torch.cuda.stream(stream):
            stream.wait_event(batch.computed)
            outputs = batch.outputs.items()
            batch.outputs = {name: self._fetched(slot, name, tensor, batch.size) for name, tensor in outputs}
            batch.done.record(stream)

    def _fetched(self, slot: Slot, name: str, tensor: Any, size: int) -> Any:
        """Return a pinned copy, complete once the stream is."""
        pinned = slot.outputs.get(name)
        shape = tuple(tensor.shape[1:])
        if pinned is None or pinned.dtype != tensor.dtype or pinned.shape[1:] != shape or len(pinned) < size:
            capacity = (max(size, self.largest), *shape)
            pinned = slot.outputs[name] = self._torch.empty(capacity, dtype=tensor.dtype, pin_memory=True)
        return pinned[:size].copy_(tensor[:size], non_blocking=True)


def _smallest_graph(graphs: Mapping[int, Captured], size: int) -> int:
    return min((captured for captured in graphs if captured >= size), default=size)


def _sent(buffers: InputBuffers, array: Array, size: int) -> Any:
    if array.ctypes.data != buffers.array.ctypes.data:  # else it was gathered there
        buffers.array[:size] = array
    return buffers.staged[:size].copy_(buffers.pinned[:size], non_blocking=True)
