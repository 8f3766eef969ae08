"""Captured graphs are handed over to native code, which then runs their batches without Python.

It is given addresses: of the graphs, of the memory they read and write, and of memory for the batches in
flight (native/worker/graph_runner.h says what for). Whoever holds a `HandedOver` keeps all that alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from astrarium.serving.live import limits
from astrarium.serving.live.backends.contract import GraphRunner
from astrarium.serving.live.backends.torch.graph_shapes import GraphShape, GraphShapes
from astrarium.serving.live.backends.torch.tensors import kind
from astrarium.serving.live.tensors import BF16, BYTES, DATATYPES, TensorSpec, to_bfloat16

IN_FLIGHT = 2  # batches of a model on the GPU: one is computed while the next is copied there and waits


class Captured(NamedTuple):
    """A captured graph reads its inputs and leaves its outputs at fixed addresses."""

    graph: Any
    outputs: Mapping[str, Any]
    inputs: Sequence[Any] = ()  # views on what all graphs of a model read
    held: Sequence[Any] = ()  # tensors that the model had kept, which the graph may read, too


class NativeSlot(NamedTuple):
    """A slot for native code has the tensors of one batch in flight."""

    inputs: Sequence[Any]  # pinned, as the outputs are; the others are on the GPU
    staged: Sequence[Any]
    results: Sequence[Any]
    outputs: Sequence[Any]

    def addresses(self) -> tuple[list[int], ...]:
        return tuple([tensor.data_ptr() for tensor in tensors] for tensors in self)


class HandedOver(NamedTuple):
    runner: GraphRunner
    slots: Sequence[NativeSlot]
    graphs: CapturedGraphs
    rests: Sequence[Any] = ()  # by input: rows for behind a batch, or None for zeros

    def add(self, shape: GraphShape, captured: Captured) -> None:
        """Let native code run one more graph, while it runs the others; not one that leaves other outputs."""
        if self.graphs.are_as_promised(captured, shape):
            self.graphs.add(self.runner, shape, captured)


class CapturedGraphs(NamedTuple):
    """Captured graphs of a model read *static* inputs; *outputs* and those of *shapes* describe tensors."""

    torch: Any
    device: Any
    graphs: Mapping[GraphShape, Captured]
    static: Sequence[Any]
    shapes: GraphShapes
    outputs: Sequence[TensorSpec]

    def needs_python(self) -> str:
        """Return why these graphs cannot run without Python; nothing where they can."""
        largest = self.graphs[max(self.graphs)]
        if not hasattr(largest.graph, "raw_cuda_graph_exec"):
            return "this PyTorch does not tell where its graphs are"
        for (shape, captured), spec in product(self.graphs.items(), self.outputs):
            if not self._is_as_promised(captured, shape, spec):
                return f"the graphs leave something else than the output {spec.name} of {spec.datatype}"
        return "it draws random numbers" if self._draws(largest) else ""

    def handed_over(self, module: Any, streams: Any) -> HandedOver:
        """Return what runs the graphs, with memory for the largest batches."""
        slots = [self._slot() for _ in range(IN_FLIGHT)]
        static = zip(self.static, self.shapes.inputs, strict=True)
        inputs = [(tensor.data_ptr(), spec.item_bytes or 0) for tensor, spec in static]
        outputs = [spec.item_bytes or 0 for spec in self.outputs]
        addresses = [slot.addresses() for slot in slots]
        open_shapes = self._open_shapes(module) if self._is_open else None
        rests = [self._rest(spec) for spec in self.shapes.inputs]
        at = [0 if rest is None else rest.data_ptr() for rest in rests]
        runner: GraphRunner = module.GraphRunner(streams, inputs, outputs, addresses, open_shapes, at)
        for shape, captured in self.graphs.items():
            self.add(runner, shape, captured)
        self.torch.cuda.synchronize(self.device)  # other streams do not wait until the new memory is zero
        return HandedOver(runner, slots, self, rests)

    def add(self, runner: GraphRunner, shape: GraphShape, captured: Captured) -> None:
        left = [captured.outputs[spec.name].data_ptr() for spec in self.outputs]
        runner.add(shape.size, captured.graph.raw_cuda_graph_exec(), left, shape.length)

    def are_as_promised(self, captured: Captured, shape: GraphShape) -> bool:
        return all(self._is_as_promised(captured, shape, spec) for spec in self.outputs)

    def _is_as_promised(self, captured: Captured, shape: GraphShape, spec: TensorSpec) -> bool:
        tensor = captured.outputs.get(spec.name)
        whole = self.shapes.whole(spec, shape)
        if tensor is None or spec.datatype == BYTES or tuple(tensor.shape) != whole:
            return False
        return bool(tensor.dtype == kind(self.torch, spec) and tensor.is_contiguous())

    def _draws(self, captured: Captured) -> bool:
        """Whether a graph takes random numbers, which PyTorch prepares before each replay."""
        generator = self.torch.cuda.default_generators[self.device.index or 0]
        before = generator.get_offset()
        captured.graph.replay()
        self.torch.cuda.synchronize(self.device)
        return bool(generator.get_offset() != before)

    @property
    def _is_open(self) -> bool:
        """Whether items have a length, which all graphs have one of, or all items of one together."""
        return self.shapes.axis is not None or bool(self.shapes.packed)

    def _open_shapes(self, module: Any) -> Any:
        fills = [(spec.fill.kind if spec.fill else "", _element(spec)) for spec in self.shapes.inputs]
        described = _plain(self.shapes.inputs), fills, _plain(self.outputs)
        longest = max([*self.shapes.largest, *(shape.length for shape in self.shapes.packed)])
        packed = next((spec.sizes_of(0) for spec in self.shapes.inputs if spec.packed), None)
        return module.OpenShapes(*described, longest, packed)

    def _rest(self, spec: TensorSpec) -> Any | None:
        """Return rows for behind a batch, where these are no zeros; open ones come with the batch."""
        if self._is_open or not (value := self.shapes.rest(spec, 0)):
            return None
        rows = self.torch.zeros((self.shapes.room(spec),), dtype=kind(self.torch, spec), device=self.device)
        return rows.fill_(value)

    def _slot(self) -> NativeSlot:
        def pinned(spec: TensorSpec) -> Any:
            room = (self.shapes.room(spec),)
            return self.torch.zeros(room, dtype=kind(self.torch, spec), pin_memory=True)

        def on_gpu(spec: TensorSpec) -> Any:
            room = (self.shapes.room(spec),)
            return self.torch.zeros(room, dtype=kind(self.torch, spec), device=self.device)

        inputs, outputs = self.shapes.inputs, self.outputs
        staged, results = list(map(on_gpu, inputs)), list(map(on_gpu, outputs))
        return NativeSlot(list(map(pinned, inputs)), staged, results, list(map(pinned, outputs)))


def _plain(specs: Sequence[TensorSpec]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(spec.name, spec.datatype, spec.shape) for spec in specs]


def _element(spec: TensorSpec) -> bytes:
    """Return the bytes of one element of an input's padding, or of what a mask has where something is."""
    if spec.fill is None:
        return np.asarray(limits.padding_element(spec)).tobytes()
    one = np.ones((), np.float32)
    return (to_bfloat16(one) if spec.datatype == BF16 else one.astype(DATATYPES[spec.datatype])).tobytes()
