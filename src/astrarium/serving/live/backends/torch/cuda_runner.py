"""On a GPU, PyTorch runs with pinned buffers, copies beside the computing, and a graph for each size.

Launching a small network kernel by kernel can take longer than running it; a graph launches all of it at
once. A graph is captured for fixed sizes and fixed addresses, so a batch is written into the static inputs
and runs in the smallest graph that has room for it, the rest of which is zeros.

Where items have a length, there are graphs for some lengths: a batch of one of these runs in a graph, those
of all others kernel by kernel. Static inputs are as large as the largest graph needs; each graph reads them
from their start, as tensors of its own shape. A packed batch comes in the shape of a graph, if it fits any:
the worker has put items behind it that are nobody's.

A GPU has a stream for copies to it, one for computing and one for copies from it. A batch that is launched
goes through all three by itself: while one is computed, the next is copied to the GPU, and the one before
from there. Each has a slot of its own for that; from there to the static inputs, and from the static outputs
on, copies take the GPU some microseconds (10 MB), much less memory than graphs for every slot.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from threading import Lock
from time import monotonic_ns
from typing import Any, NamedTuple

from astrarium.core.optional import extension
from astrarium.core.quantities import Time
from astrarium.serving.live.backends.answers import named
from astrarium.serving.live.backends.contract import GraphRunner
from astrarium.serving.live.backends.torch.graph_check import first_wrong
from astrarium.serving.live.backends.torch.graph_shapes import GraphShape, GraphShapes, largest_first
from astrarium.serving.live.backends.torch.graphs import (
    IN_FLIGHT,
    Captured,
    CapturedGraphs,
    HandedOver,
)
from astrarium.serving.live.backends.torch.kept_tensors import tensors_kept
from astrarium.serving.live.backends.torch.programs import Program
from astrarium.serving.live.backends.torch.streams import GpuClock, elapsed, streams_of
from astrarium.serving.live.backends.torch.tensors import array_of, kind, portable, tensor_of
from astrarium.serving.live.tensors import BYTES, Array, TensorSpec

MadeUp = Callable[[GraphShape], Sequence[Array]]  # the inputs of a batch
_BEFORE_CAPTURE = 3  # runs in which libraries choose their kernels and allocate


class InputBuffers(NamedTuple):
    """An input's buffers for the largest batch: in pinned memory (as tensor and array), and on the GPU.

    They are *flat* where items have a length, also those of a model that takes them packed.
    """

    pinned: Any
    array: Array
    staged: Any
    flat: bool


class CudaBatch:
    """A batch with the GPU has events for how far it has come; `done` says that the host has its answers."""

    def __init__(self, torch: Any, shape: GraphShape) -> None:
        self._torch = torch
        self.shape = shape
        self.size = shape.size
        self.copied = torch.cuda.Event()
        self.began, self.computed, self.done = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        self.on_gpu: list[Any] = []  # tensors that the GPU may still be using
        self.outputs: dict[str, Any] = {}  # pinned

    def arrays(self) -> dict[str, Array]:
        return {name: array_of(self._torch, tensor) for name, tensor in self.outputs.items()}


class Slot:
    """A slot has the buffers of one batch in flight. Slots take turns: here the last batch is mostly done."""

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
        self, torch: Any, program: Program, outputs: Sequence[TensorSpec], device: str, shapes: GraphShapes
    ) -> None:
        self._torch = torch
        self._call = program.call
        self._module = program.module
        self._calling = Lock()  # a module may keep tensors between calls: two threads would mix them up
        self._names = [spec.name for spec in outputs]
        self._types = {spec.name: kind(torch, spec) for spec in outputs if spec.datatype != BYTES}
        self._device = torch.device(device)
        self.shapes = shapes
        self.beside_graphs = 0  # batches that no graph could run
        self._largest = shapes.rows
        self._specs = program.inputs
        self._streams = streams_of(torch, self._device)
        self._slots = [Slot([self._buffers(spec) for spec in self._specs]) for _ in range(IN_FLIGHT)]
        self._next = 0
        self._static: list[Any] = []
        self._graphs: dict[GraphShape, Captured] = {}  # replaced, never changed: another thread adds to them
        self._stream = torch.cuda.Stream(self._device)
        self._pool = torch.cuda.graph_pool_handle()
        self._capturing = Lock()
        self._handed_over: HandedOver | None = None
        self._clock = GpuClock()
        self._takes: dict[GraphShape, Time] = {}  # of the graph, or of the batch

    def run(self, arrays: Sequence[Array], size: int) -> dict[str, Array]:
        batch = self.launch(arrays, size)
        batch.done.synchronize()
        self.spans(batch, monotonic_ns())
        return batch.arrays()

    def launch(self, arrays: Sequence[Array], size: int) -> CudaBatch:
        slot = self._slots[self._next]
        batch = CudaBatch(self._torch, self.shapes.of_batch(arrays, size))
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

    def expected(self, shape: GraphShape) -> Time:
        """Return how long the GPU will take for a batch; 0 where nobody knows yet."""
        return self._takes.get(self._graph_shape(shape), 0)

    def spans(self, batch: CudaBatch, seen: Time) -> tuple[Time, Time]:
        """Return when the GPU began to compute a batch, and ended, of which the host has *seen* all now."""
        done = self._clock.when(batch.done, seen)
        ended = done - elapsed(batch.computed, batch.done)
        began = ended - elapsed(batch.began, batch.computed)
        self._learn(self._graph_shape(batch.shape), done - began)
        return began, ended

    def staging(self, size: int) -> Sequence[Array | None]:
        """Return the pinned memory of each input of the next batch, as far as one of this size needs it."""
        if size > self._largest:
            return ()
        slot = self._slots[self._next]
        slot.free()
        return [None if buffers is None or buffers.flat else buffers.array[:size] for buffers in slot.inputs]

    def hand_over(self, model: str, outputs: Sequence[TensorSpec]) -> GraphRunner | None:
        """Return what runs the graphs without Python; None where nothing can."""
        if not self._graphs or (module := extension("_worker")) is None:
            return None
        graphs = CapturedGraphs(self._torch, self._device, self._graphs, self._static, self.shapes, outputs)
        with self._torch.cuda.device(self._device):  # native code takes the context that it finds
            if why := graphs.needs_python():
                warnings.warn(f"{model}: its batches are launched by Python, since {why}", stacklevel=2)
                return None
            self._handed_over = graphs.handed_over(module, self._streams.native(module))
        return self._handed_over.runner

    def capture(self, wanted: Sequence[GraphShape], model: str) -> bool:
        """Capture a graph for each shape, large ones first: small ones find room in the memory of those.

        Nothing runs in these graphs yet. Return whether the runs of one size warm up all others, too.
        """
        torch = self._torch
        with torch.cuda.stream(self._stream):
            self._static = [self._flat(torch.zeros, spec, self.shapes.room(spec)) for spec in self._specs]
        for shape in largest_first([shape for shape in wanted if self.shapes.may_have(shape)]):
            try:
                inputs = self._views(shape)
                self._fill(inputs, shape, self._stream)
                self._warm(inputs, self._stream)
                torch.cuda.empty_cache()  # what was used to warm up becomes the graph's
                self._graphs = {**self._graphs, shape: self._captured(inputs)}
            except Exception as error:
                failed = f"capturing {_described(shape)} failed: {error}"
                warnings.warn(f"{model}: runs without CUDA graphs, {failed}", stacklevel=2)
                self._graphs = {}
                return False
        return bool(self._graphs)

    def check(self, made_up: MadeUp, outputs: Sequence[TensorSpec], model: str) -> bool:
        """Try the graphs before anything runs in them; return whether they answer as the model does."""

        torch = self._torch

        def eager(shape: GraphShape) -> Mapping[str, Array]:
            return self._eager(shape, made_up(shape))

        def replayed(shape: GraphShape) -> Mapping[str, Array]:
            return self._in_graph(shape, made_up(shape))

        try:
            wrong = first_wrong(list(self._graphs), eager, replayed, outputs)
            why = f"{_described(wrong)} is answered otherwise in one" if wrong else ""
        except torch.OutOfMemoryError:  # for want of room beside the graphs, which says nothing of them
            why = ""
        except Exception as error:
            why = f"trying them failed: {error}"
        finally:
            torch.cuda.empty_cache()  # what these runs took is nobody's now
        if why:
            warnings.warn(f"{model}: runs without CUDA graphs, {why}", stacklevel=2)
            self._graphs = {}
        return not why

    def capture_more(self, shape: GraphShape, model: str) -> bool:
        """Capture one more graph while batches run in the others; return whether there may be further ones.

        Capturing only records. Warming up computes: with inputs of its own, and in the default stream, where
        nothing is captured. Libraries have memory for each stream (the workspace of cuBLAS), and graphs go on
        using that of the stream in which they were captured.

        The first graphs, of the same lengths, were tried. This one is not: batches are in what it reads.
        """
        with self._capturing:
            if not self._graphs:
                return False  # closed meanwhile
            try:
                captured = self._captured_aside(shape)
            except Exception as error:
                reason = f"{model}: {_described(shape)} runs in a larger graph, capturing one failed: {error}"
                warnings.warn(reason, stacklevel=2)
                return False
            self._graphs = {**self._graphs, shape: captured}
            if self._handed_over is not None:
                self._handed_over.add(shape, captured)
        return True

    def close(self) -> None:
        with self._capturing:
            graphs, self._graphs = self._graphs, {}
        if self._handed_over is not None:
            self._handed_over.runner.finish()
        for slot in self._slots:
            slot.free()
        del graphs  # with what they read: they may have run until now
        self._static = []
        self._slots = []
        self._handed_over = None
        del self._call, self._module

    def _learn(self, shape: GraphShape, took: Time) -> None:
        known = self._takes.get(shape, took)
        # Expecting an end too early costs less than too late.
        self._takes[shape] = min(took, known + known // 8)

    def _graph_shape(self, shape: GraphShape) -> GraphShape:
        """Return the shape of the graph that a batch runs in; without one, its own.

        Packed batches without a graph are one for each size: there are very many shapes.
        """
        own = GraphShape(shape.size) if shape.packed else shape
        return _smallest_graph(self._graphs, shape) or own

    def _buffers(self, spec: TensorSpec) -> InputBuffers | None:
        """Return an input's buffers for the largest batch; None where nobody knows how large it may be."""
        room = self.shapes.room(spec)
        flat = spec.item_bytes is None or bool(self.shapes.packed)
        if not self._largest or (flat and not room):
            return None
        pinned = self._torch.zeros((room,), dtype=kind(self._torch, spec), pin_memory=True)
        staged = self._flat(self._torch.empty, spec, room)
        if not flat:
            pinned, staged = (one.view(self._largest, *spec.shape) for one in (pinned, staged))
        return InputBuffers(pinned, array_of(self._torch, pinned), staged, flat)

    def _flat(self, make: Callable[..., Any], spec: TensorSpec, elements: int) -> Any:
        return make((elements,), dtype=kind(self._torch, spec), device=self._device)

    def _views(self, shape: GraphShape) -> list[Any]:
        """Return the inputs of a graph: the first part of what all graphs read."""
        wholes = [self.shapes.whole(spec, shape) for spec in self._specs]
        return [static[: prod(whole)].view(whole) for static, whole in zip(self._static, wholes, strict=True)]

    def _fill(self, inputs: Sequence[Any], shape: GraphShape, stream: Any) -> None:
        """Fill inputs with what a batch has behind its items: nothing that breaks a model."""
        with self._torch.cuda.stream(stream):
            for tensor, spec in zip(inputs, self._specs, strict=True):
                value = self.shapes.empty(spec, shape)
                if isinstance(value, float | int):
                    _fill(tensor, value)
                else:
                    tensor.copy_(tensor_of(self._torch, value))

    def _warm(self, inputs: Sequence[Any], stream: Any) -> None:
        """Run the model a few times, and wait for it."""
        with self._torch.inference_mode(), self._torch.cuda.stream(stream):
            for _ in range(_BEFORE_CAPTURE):
                self._answer(inputs)
            stream.synchronize()

    def _captured(self, inputs: Sequence[Any]) -> Captured:
        """Return the graph of a model that is warm for inputs of these shapes.

        `torch.cuda.graph` would wait until the whole GPU is idle, and give memory back: batches go on here.
        """
        torch = self._torch
        graph = self._torch.cuda.CUDAGraph()
        held = tensors_kept(torch, self._module)
        with torch.inference_mode(), torch.cuda.stream(self._stream), _uncollected():
            # What other threads do meanwhile, which run batches, must not break the capture.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs = self._answer(inputs)
            finally:
                graph.capture_end()
        return Captured(graph, outputs, inputs, [*held, *tensors_kept(torch, self._module)])

    def _captured_aside(self, shape: GraphShape) -> Captured:
        torch = self._torch
        aside = self._torch.cuda.default_stream(self._device)
        static = self._views(shape)
        with torch.cuda.stream(aside):
            inputs = [torch.zeros(view.shape, dtype=view.dtype, device=self._device) for view in static]
        self._fill(inputs, shape, aside)
        with self._calling:
            aside.wait_event(self._computed_so_far())  # batches beside graphs use what the module keeps
            self._warm(inputs, aside)
            return self._captured(static)

    def _computed_so_far(self) -> Any:
        event = self._torch.cuda.Event()
        event.record(self._streams.compute)
        return event

    def _eager(self, shape: GraphShape, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return the answers to some items of a batch, computed without a graph."""
        with self._torch.inference_mode(), self._torch.cuda.stream(self._stream):
            tensors = [tensor_of(self._torch, array).to(self._device) for array in arrays]
            return self._some(shape, self._answer(tensors))

    def _in_graph(self, shape: GraphShape, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return the same answers from a graph in which nothing else runs."""
        captured = self._graphs[shape]
        with self._torch.inference_mode(), self._torch.cuda.stream(self._stream):
            for static, array in zip(captured.inputs, arrays, strict=True):
                static.copy_(tensor_of(self._torch, array))
            captured.graph.replay()
            return self._some(shape, captured.outputs)

    def _some(self, shape: GraphShape, outputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the answers to the first and the last item; of packed ones to all, or as many elements."""
        some = {name: tensor[:: _stride(shape, len(tensor))].cpu() for name, tensor in outputs.items()}
        return {name: array_of(self._torch, tensor).copy() for name, tensor in some.items()}

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
            if batch.size <= self._largest and len(there) == len(arrays) and _all_fit(there, arrays):
                tensors = [_sent(*pair, batch.size) for pair in zip(there, arrays, strict=True)]
            else:
                sources = [tensor_of(self._torch, array) for array in arrays]
                tensors = [tensor.to(self._device, non_blocking=True) for tensor in sources]
            batch.copied.record(stream)
        return tensors

    def _compute(self, tensors: Sequence[Any], batch: CudaBatch) -> None:
        stream = self._streams.compute
        with self._torch.cuda.stream(stream):
            stream.wait_event(batch.copied)
            graph = self._graph_for(batch.shape, tensors)
            if graph is None:
                outputs = self._beside(tensors, batch)
            else:
                batch.began.record(stream)
                outputs = self._replayed(graph, tensors, batch)
            batch.computed.record(stream)
        batch.on_gpu = [*tensors, *outputs.values()]
        batch.outputs = outputs

    def _beside(self, tensors: Sequence[Any], batch: CudaBatch) -> dict[str, Any]:
        """Return the outputs of a batch that runs beside the graphs, and beside the capturing of others."""
        with self._calling:
            batch.began.record(self._streams.compute)
            return self._answer(tensors)

    def _graph_for(self, shape: GraphShape, tensors: Sequence[Any]) -> Captured | None:
        graphs = self._graphs
        smallest = _smallest_graph(graphs, shape)
        graph = None if smallest is None else graphs[smallest]
        if graph is not None and shape.length and not _alike(graph.inputs, tensors, shape.packed):
            graph = None  # inputs of one axis, but of different lengths
        if graph is None and graphs:
            self.beside_graphs += 1
        return graph

    def _replayed(self, captured: Captured, tensors: Sequence[Any], batch: CudaBatch) -> dict[str, Any]:
        for static, tensor, spec in zip(captured.inputs, tensors, self._specs, strict=True):
            static[: len(tensor)].copy_(tensor, non_blocking=True)
            if len(static) > len(tensor):
                _fill(static[len(tensor) :], self.shapes.rest(spec, batch.shape.length))  # not the last batch
        captured.graph.replay()
        rows = None if batch.shape.packed else batch.size  # of a packed batch all are those of the graph
        return {name: tensor[:rows].clone() for name, tensor in captured.outputs.items()}

    def _copy_out(self, slot: Slot, batch: CudaBatch) -> None:
        stream = self._streams.copy_out
        with self._torch.cuda.stream(stream):
            stream.wait_event(batch.computed)
            outputs = batch.outputs.items()
            batch.outputs = {name: self._fetched(slot, name, tensor) for name, tensor in outputs}
            batch.done.record(stream)

    def _fetched(self, slot: Slot, name: str, tensor: Any) -> Any:
        """Return a pinned copy, complete once the stream is."""
        pinned = slot.outputs.get(name)
        shape = tuple(tensor.shape)
        if pinned is None or pinned.dtype != tensor.dtype or pinned.numel() < prod(shape):
            room = (max(prod(shape), self._largest * prod(shape[1:])),)
            pinned = slot.outputs[name] = self._torch.empty(room, dtype=tensor.dtype, pin_memory=True)
        return pinned[: prod(shape)].view(shape).copy_(tensor, non_blocking=True)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep Python from collecting garbage: a graph among it that is freed here would break a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _smallest_graph(graphs: Mapping[GraphShape, Captured], shape: GraphShape) -> GraphShape | None:
    return min((one for one in graphs if one.takes(shape)), default=None)


def _stride(shape: GraphShape, rows: int) -> int:
    return max(1, rows // shape.size if shape.packed else rows - 1)


def _described(shape: GraphShape) -> str:
    if shape.packed:
        return f"a batch of {shape.size} with {shape.length} elements in all"
    return f"a batch of {shape.size}{f' of length {shape.length}' if shape.length else ''}"


def _fill(tensor: Any, value: float) -> Any:
    return tensor.fill_(value) if value else tensor.zero_()


def _alike(static: Sequence[Any], tensors: Sequence[Any], packed: bool) -> bool:
    """Whether the items of a batch have the shapes of a graph's, or a packed batch as a whole."""
    first = 0 if packed else 1
    return all(one.shape[first:] == other.shape[first:] for one, other in zip(static, tensors, strict=True))


def _all_fit(buffers: Sequence[InputBuffers], arrays: Sequence[Array]) -> bool:
    return all(array.size <= one.array.size for one, array in zip(buffers, arrays, strict=True) if one.flat)


def _sent(buffers: InputBuffers, array: Array, size: int) -> Any:
    if buffers.flat:
        buffers.array[: array.size] = array.reshape(-1)
        sent = buffers.staged[: array.size].copy_(buffers.pinned[: array.size], non_blocking=True)
        return sent.view(array.shape)
    if array.ctypes.data != buffers.array.ctypes.data:  # else it was gathered there
        buffers.array[:size] = array
    return buffers.staged[:size].copy_(buffers.pinned[:size], non_blocking=True)
