"""The PyTorch backend runs an exported program, a TorchScript file, or Python code that makes a module.

    backend: {torch: net.pt2}
    backend: {torch: {model: net.py:make, arguments: {width: 64}, dtype: fp16, graphs: [1, 8, 32]}}

| option | meaning |
| --- | --- |
| model | .pt2 (torch.export.save), .pt (torch.jit.save), or FILE:NAME of what makes an nn.Module |
| arguments | of what makes the module |
| dtype | fp32, fp16 or bf16: parameters and floating inputs are converted; outputs come back as declared |
| graphs | on a GPU: true (sizes 1, 2, 3, 4, 6, 8, ... are captured as CUDA graphs), false, or the sizes |
| compile | true: through torch.compile first |
| threads | on a processor: how many it uses (1) |

Inputs are handed to the module in the order of the scenario. An exported program tells its inputs itself;
outputs that are not declared are found out with a trial run, and so are inputs that index an embedding: they
take the numbers of its rows only, unless they say their `values`. On a GPU, batches are launched ahead, and
the arrays of a result are valid until the next but one is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from threading import Thread
from time import monotonic_ns
from typing import Any

import numpy as np

from astrarium.core.errors import InputError
from astrarium.serving.live.backends import backends, contract, examples, options
from astrarium.serving.live.backends.answers import result
from astrarium.serving.live.backends.blame import blamed
from astrarium.serving.live.backends.contract import (
    Batch,
    GraphRunner,
    ModelFailed,
    ModelFiles,
    Place,
    Ran,
    package,
)
from astrarium.serving.live.backends.precise_wait import Wait, wait_until
from astrarium.serving.live.backends.references import existing, resolved
from astrarium.serving.live.backends.torch import embeddings, programs
from astrarium.serving.live.backends.torch.cpu_runner import CpuRunner
from astrarium.serving.live.backends.torch.cuda_runner import CudaBatch, CudaRunner
from astrarium.serving.live.backends.torch.graph_shapes import GraphShape, shapes_of
from astrarium.serving.live.backends.torch.graphs import IN_FLIGHT
from astrarium.serving.live.backends.torch.tensors import tensor_of
from astrarium.serving.live.packing import PackedShape, is_packed
from astrarium.serving.live.phases import Phases
from astrarium.serving.live.tensors import Array

OPTIONS = ("model", "arguments", "dtype", "graphs", "compile", "threads")
_WITHOUT_RANGE = (
    "packed batches run kernel by kernel, without CUDA graphs: their input has no range, or hardly any"
)
_UNKNOWN = "a list such as [{name: IMAGE, datatype: FP32, shape: [3, 224, 224]}]: only a .pt2 file can tell"


@backends.register("torch")
class TorchModel:
    """A PyTorch model; on a GPU it is a launching and a partial one.

    `wait_until` may be replaced by the worker. `warm_up` captures graphs for some sizes, `rest` those for the
    others: until then, batches of those sizes run in the next larger graph.
    """

    packs = True
    launch: Callable[[Batch, int], TorchBatch]  # on a GPU, as is the next
    in_flight: int

    def __init__(self, files: ModelFiles, place: Place) -> None:
        self.phases = Phases()
        with self.phases.phase("imports"):
            torch = package("torch", "torch")
        program = self._program(torch, files, place.device)
        with self.phases.phase("trial run"):
            limited = embeddings.limited(torch, program, partial(_on_device, torch, place.device))
        program = program._replace(inputs=limited.inputs)
        self.inputs, self.example_inputs, self.notes, self.warnings = limited
        self.weights = program.weights
        with self.phases.phase("buffers"):
            self._runner = _runner(torch, program, files, place)
            self.outputs = files.outputs or programs.tried_outputs(self._runner, self.example_inputs)
        self._name = files.name
        self._largest = files.max_batch
        self._buckets_given = bool(files.buckets)
        self.graph_sizes = graph_sizes(files) if place.device != "cpu" else []
        self.packed_shapes: Sequence[PackedShape] = ()  # replaced, never changed: it grows in another thread
        self._later: list[GraphShape] = []  # graphs that are not captured yet
        self.wait_until: Wait = wait_until
        self.graphs: GraphRunner | None = None
        self.buckets: tuple[int, ...] = ()
        if isinstance(self._runner, CudaRunner):
            self.buckets = self._runner.shapes.buckets
            self.packed_shapes = _rising(self._runner.shapes.packed)
            self.launch = self._launching(self._runner)
            self.in_flight = IN_FLIGHT
            if is_packed(self.inputs) and self.graph_sizes and not self.packed_shapes:
                self.notes = (*self.notes, _WITHOUT_RANGE)

    def _program(self, torch: Any, files: ModelFiles, device: str) -> programs.Program:
        with self.phases.phase("context"):
            _check_device(torch, device)
            context = _context(torch, device)
        with self.phases.phase("build"):  # while the GPU's context is made
            built = programs.built(torch, files)
        with self.phases.phase("context"):
            context.join()
        with self.phases.phase("weights"):
            return programs.placed(torch, built, files, device)

    def padding_is(self, safe: bool) -> None:
        if not safe and not self._buckets_given:
            self.buckets = ()  # hardly any batch would be of exactly these lengths
        if not safe:
            self.packed_shapes = ()

    def warm_up(self, sizes: Sequence[int]) -> None:
        with self.phases.phase("graphs"):
            if self._capture():
                sizes = sorted({min(sizes), max(sizes)})
            self.graphs = self._runner.hand_over(self._name, self.outputs)
        with self.phases.phase("warm-up"):
            for length, size in product(sorted({*self.buckets[:1], *self.buckets[-1:]}) or [0], sizes):
                specs = examples.with_lengths(self.example_inputs, examples.nearest(length))
                self.run(examples.batch(specs, size, np.random.default_rng(0)))
        self._runner.beside_graphs = 0

    def _capture(self) -> bool:
        """Capture graphs; return whether the runs of one size warm up all others, too."""
        shapes = self._runner.shapes
        if shapes.axis is not None and not self.buckets:
            shapes = replace(shapes, largest={})
        if not self.packed_shapes:
            shapes = replace(shapes, packed=())
        first, later = shapes.planned([size for size in self.graph_sizes if size <= self._largest])
        if self._runner.capture(first, self._name) and self._runner.check(
            self._made_up, self.outputs, self._name
        ):
            self._later = later
            self.packed_shapes = _rising(shape for shape in first if shape.packed)
            self.notes = (*self.notes, *_notes_on_graphs(self.buckets, self.packed_shapes))
            return True
        self.buckets = self.packed_shapes = ()
        return False

    def _made_up(self, shape: GraphShape) -> list[Array]:
        """Return a made-up batch for a graph: two items in turn, or where they are packed, unequal ones."""
        chance = np.random.default_rng(0)
        if is_packed(self.inputs):
            return self._arrays(examples.packed(self.example_inputs, shape.size, shape.length, chance))
        specs = examples.with_lengths(self.example_inputs, examples.nearest(shape.length))
        few = examples.batch(specs, min(2, shape.size), chance)
        return [np.resize(array, (shape.size, *array.shape[1:])) for array in self._arrays(few)]

    @property
    def partial(self) -> bool:
        return bool(self._later)

    @property
    def beside_graphs(self) -> int:
        """Return how many batches no graph could run, though there are graphs."""
        return self._runner.beside_graphs

    def rest(self) -> Iterator[int]:
        while self._later and self._runner.capture_more(self._later[0], self._name):
            captured = self._later.pop(0)
            if captured.packed:
                self.packed_shapes = sorted([*self.packed_shapes, *_rising([captured])])
            yield captured.size
        self._later = []

    def run(self, batch: Batch) -> contract.Result:
        try:
            answer = self._runner.run(self._arrays(batch), batch.size)
        except Exception as error:
            raise ModelFailed(blamed(error)) from error
        return result(answer, self.outputs, batch)

    def staging(self, size: int) -> Mapping[str, Array]:
        arrays = self._runner.staging(size)
        return {
            spec.name: array for spec, array in zip(self.inputs, arrays, strict=False) if array is not None
        }

    def close(self) -> None:
        self._runner.close()

    def _launching(self, runner: CudaRunner) -> Callable[[Batch, int], TorchBatch]:
        def launch(batch: Batch, not_before: int) -> TorchBatch:
            try:
                return TorchBatch(self, runner, batch, runner.launch(self._arrays(batch), batch.size))
            except Exception as error:
                raise ModelFailed(blamed(error)) from error

        return launch

    def _arrays(self, batch: Batch) -> list[Array]:
        return [batch.inputs[spec.name] for spec in self.inputs]

    @staticmethod
    def prepare(files: ModelFiles, code: bool) -> None:
        torch = package("torch", "torch")
        embeddings.prepare(torch)
        if code:
            programs.prepare(torch, files)

    @staticmethod
    def forget() -> None:
        programs.forget()

    @staticmethod
    def check(files: ModelFiles) -> Mapping[str, Any]:
        settings = files.options
        options.check_known(settings, OPTIONS)
        options.choice(settings, "dtype", list(programs.DTYPES))
        options.flag(settings, "compile", False)
        options.count(settings, "threads", 1)
        graph_sizes(files)
        return {**settings, "model": _checked_model(files)}


class TorchBatch:
    """A launched batch of PyTorch; the worker hears orders while it waits for it."""

    def __init__(self, model: TorchModel, runner: CudaRunner, batch: Batch, on_gpu: CudaBatch) -> None:
        self._model = model
        self._runner = runner
        self._batch = batch
        self._on_gpu = on_gpu
        self._launched = monotonic_ns()

    def wait(self, free: int) -> Ran:
        expected = max(free, self._launched) + self._runner.expected(self._on_gpu.shape)
        self._model.wait_until(expected, self._on_gpu.done.query)
        began, ended = self._runner.spans(self._on_gpu, monotonic_ns())
        answer = result(self._on_gpu.arrays(), self._model.outputs, self._batch)
        return Ran(answer, max(began, free), max(ended, free))


def graph_sizes(files: ModelFiles) -> list[int]:
    """Return the batch sizes that become CUDA graphs."""
    wanted = files.options.get("graphs", True)
    if isinstance(wanted, bool):
        return examples.sizes(files.max_batch) if wanted else []
    if not isinstance(wanted, list | tuple) or not all(options.is_count(size) for size in wanted):
        raise InputError("graphs", wanted, "true, false, or a list of batch sizes such as [1, 8, 32]")
    return sorted(set(wanted))


@cache
def _context(torch: Any, device: str) -> Thread:
    """Return a thread that makes the context of a GPU, which takes long: the host has other things to do."""

    def make() -> None:
        with suppress(Exception):  # whoever uses the GPU next will hear of it
            torch.zeros(1, device=device)

    thread = Thread(target=make, daemon=True)
    thread.start()
    return thread


def _runner(torch: Any, program: programs.Program, files: ModelFiles, place: Place) -> CpuRunner | CudaRunner:
    if place.device == "cpu":
        names = [spec.name for spec in files.outputs]
        threads = options.count(files.options, "threads", 1)
        return CpuRunner(torch, program.call, names, threads)
    sizes = [size for size in graph_sizes(files) if size <= files.max_batch]
    shapes = shapes_of(files, program.inputs, sizes)
    return CudaRunner(torch, program, files.outputs, place.device, shapes)


def _rising(shapes: Iterable[GraphShape]) -> list[PackedShape]:
    return sorted(PackedShape(shape.length, shape.size) for shape in shapes)


def _notes_on_graphs(buckets: Sequence[int], packed: Sequence[PackedShape]) -> list[str]:
    """Return what people are told of graphs by length."""
    if packed:
        largest = packed[-1].total
        return [f"has CUDA graphs for packed batches of up to {largest} in all; others run kernel by kernel"]
    if not buckets:
        return []
    lengths = ", ".join(map(str, buckets))
    return [f"has CUDA graphs for the lengths {lengths}; batches of others run kernel by kernel"]


def _on_device(torch: Any, device: str, array: Array) -> Any:
    return tensor_of(torch, array).to(device)


def _checked_model(files: ModelFiles) -> str:
    model = files.options.get("model")
    is_file = isinstance(model, str) and Path(model).suffix in programs.ENDINGS
    if not files.inputs and not (is_file and Path(str(model)).suffix == ".pt2"):
        raise InputError("inputs", None, _UNKNOWN)
    if is_file:
        return str(existing(model, files.base, "model"))
    return resolved(model, files.base, "model")


def _check_device(torch: Any, device: str) -> None:
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device != "cpu" and int(device.removeprefix("cuda:")) >= seen:
        raise InputError("device", device, f"cpu, or one of the {seen} GPUs that PyTorch sees")
