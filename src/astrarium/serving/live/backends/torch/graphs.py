"""Captured graphs are handed over to native code, which then runs their batches without Python.

It is given addresses: of the graphs, of the memory they read and write, and of memory for the batches in
flight (native/worker/graph_runner.h says what for). Whoever holds a `HandedOver` keeps all that alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from astrarium.serving.live.backends.contract import GraphRunner
from astrarium.serving.live.backends.torch.tensors import kind
from astrarium.serving.live.tensors import BYTES, TensorSpec

IN_FLIGHT = 2  # batches of a model on the GPU: one is computed while the next is copied there and waits


class Captured(NamedTuple):
    graph: Any
    outputs: Mapping[str, Any]  # static, as the inputs are


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

    def add(self, size: int, captured: Captured) -> None:
        """Let native code run one more graph, while it runs the others; not one that leaves other outputs."""
        if self.graphs.are_as_promised(captured, size):
            self.graphs.add(self.runner, size, captured)


class CapturedGraphs(NamedTuple):
    """Captured graphs of a model, by size, read *static* inputs; *inputs* and *outputs* describe tensors."""

    torch: Any
    device: Any
    graphs: Mapping[int, Captured]
    static: Sequence[Any]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]

    def needs_python(self) -> str:
        """Return why these graphs cannot run without Python; nothing where they can."""
        largest = self.graphs[max(self.graphs)]
        if not hasattr(largest.graph, "raw_cuda_graph_exec"):
            return "this PyTorch does not tell where its graphs are"
        for (size, captured), spec in product(self.graphs.items(), self.outputs):
            if not self._is_as_promised(captured, size, spec):
                return f"the graphs leave something else than the output {spec.name} of {spec.datatype}"
        return "it draws random numbers" if self._draws(largest) else ""

    def handed_over(self, module: Any, streams: Any, largest: int) -> HandedOver:
        """Return what runs the graphs, with memory for batches of up to *largest*."""
        slots = [self._slot(largest) for _ in range(IN_FLIGHT)]
        static = zip(self.static, self.inputs, strict=True)
        inputs = [(tensor.data_ptr(), spec.item_bytes) for tensor, spec in static]
        outputs = [spec.item_bytes for spec in self.outputs]
        runner: GraphRunner = module.GraphRunner(
            streams, inputs, outputs, [slot.addresses() for slot in slots]
        )
        for size, captured in self.graphs.items():
            self.add(runner, size, captured)
        self.torch.cuda.synchronize(self.device)  # other streams do not wait until the new memory is zero
        return HandedOver(runner, slots, self)

    def add(self, runner: GraphRunner, size: int, captured: Captured) -> None:
        left = [captured.outputs[spec.name].data_ptr() for spec in self.outputs]
        runner.add(size, captured.graph.raw_cuda_graph_exec(), left)

    def are_as_promised(self, captured: Captured, size: int) -> bool:
        return all(self._is_as_promised(captured, size, spec) for spec in self.outputs)

    def _is_as_promised(self, captured: Captured, size: int, spec: TensorSpec) -> bool:
        tensor = captured.outputs.get(spec.name)
        if tensor is None or spec.datatype == BYTES or tuple(tensor.shape) != (size, *spec.shape):
            return False
        return bool(tensor.dtype == kind(self.torch, spec) and tensor.is_contiguous())

    def _draws(self, captured: Captured) -> bool:
        """Whether a graph takes random numbers, which PyTorch prepares before each replay."""
        generator = self.torch.cuda.default_generators[self.device.index or 0]
        before = generator.get_offset()
        captured.graph.replay()
        self.torch.cuda.synchronize(self.device)
        return bool(generator.get_offset() != before)

    def _slot(self, largest: int) -> NativeSlot:
        def pinned(spec: TensorSpec) -> Any:
            return self.torch.zeros((largest, *spec.shape), dtype=kind(self.torch, spec), pin_memory=True)

        def on_gpu(spec: TensorSpec) -> Any:
            shape = (largest, *spec.shape)
            return self.torch.zeros(shape, dtype=kind(self.torch, spec), device=self.device)

        staged = list(map(on_gpu, self.inputs))
        results = list(map(on_gpu, self.outputs))
        return NativeSlot(list(map(pinned, self.inputs)), staged, results, list(map(pinned, self.outputs)))
