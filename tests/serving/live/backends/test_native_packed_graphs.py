"""Graphs of packed batches, run by native code on a driver without a GPU.

A graph negates the tokens and scales that it is given; what else it reads is looked at in its static inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astrarium.core.optional import extension
from astrarium.serving.live import fills
from astrarium.serving.live.backends import batches
from astrarium.serving.live.backends.contract import Batch, graph_runner
from astrarium.serving.live.backends.torch.graph_shapes import GraphShape, GraphShapes, packed_shapes
from astrarium.serving.live.backends.torch.graphs import Captured, CapturedGraphs
from astrarium.serving.live.messages import BatchBroken, BatchDone, BatchMember, RunBatch, Shapes, packed
from astrarium.serving.live.packing import PackedShape
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker.inputs import UnequalItems
from astrarium.serving.live.worker.packing import together
from astrarium.serving.live.worker.repeated_order import RepeatedOrder
from tests.serving.live.test_graphs import FakeTorch, Gpu, GpuWorld
from tests.serving.live.test_graphs_by_length import FakeGraph, torch_type
from tests.serving.live.world import MS

LOW, HIGH = 2, 16
LARGEST = 8
TOKENS = TensorSpec("TOKENS", "INT8", (-1, 2), ranges=((LOW, HIGH), None))
SCALE = TensorSpec("SCALE", "INT8", (3,), (5, 100))
OFFSETS = TensorSpec("OFFSETS", "INT32", ())
LENGTHS = TensorSpec("LENGTHS", "INT64", (1,))
EACH = TensorSpec("EACH", "INT8", (-1, 2))
ROW = TensorSpec("ROW", "INT8", (3,))
ROOM = 1 << 10  # bytes of a member's block, half of which are for its reply
SCALE_AT = 64  # behind the tokens of an item, aligned


class PackedGpu(Gpu):
    """A GPU with one model, whose graphs negate tokens and scales: each is laid out before the other."""

    def __init__(self, library: Path, takes: int = 5 * MS) -> None:
        super().__init__(library)
        torch = FakeTorch(pytest.importorskip("torch"))
        self.takes = takes
        inputs = TOKENS, SCALE, OFFSETS, LENGTHS
        self.inputs = fills.marked(inputs, lengths="LENGTHS", offsets="OFFSETS", pack=True)
        own = packed_shapes((LOW, HIGH), {LOW: LARGEST, HIGH: LARGEST}, [1, 2, 4, 8])
        self.shapes = GraphShapes(self.inputs, {}, own)
        self.packed_shapes = sorted(PackedShape(shape.length, shape.size) for shape in own)
        rooms = [self.shapes.room(spec) for spec in self.inputs]
        both = sum(rooms[:2])
        static, left = (torch.zeros((both,), torch_type(TOKENS)) for _ in range(2))
        self.flat = [static[: rooms[0]], static[rooms[0] :]]
        self.flat += [
            torch.zeros((room,), torch_type(spec))
            for room, spec in zip(rooms[2:], self.inputs[2:], strict=True)
        ]
        graphs = {shape: self._captured(shape, static, left, rooms[0]) for shape in own}
        device = SimpleNamespace(index=0)
        captured = CapturedGraphs(torch, device, graphs, self.flat, self.shapes, [EACH, ROW])
        assert captured.needs_python() == ""
        self.handed = captured.handed_over(extension("_worker"), self.streams)
        self.runners = [self.handed.runner]

    def _captured(self, shape: GraphShape, static: Any, left: Any, second: int) -> Captured:
        each, row = (self.shapes.whole(spec, shape) for spec in (EACH, ROW))
        tokens, scales = int(np.prod(each)), int(np.prod(row))
        outputs = {"EACH": left[:tokens].view(each), "ROW": left[second : second + scales].view(row)}
        return Captured(FakeGraph(static, left, len(static), self.takes), outputs)

    def read(self, batch: Batch) -> dict[str, Any]:
        """Return what the static inputs hold, as far as those of a batch go."""
        pairs = zip(self.inputs, self.flat, strict=True)
        return {
            spec.name: flat.numpy()[: batch.inputs[spec.name].size]
            .reshape(batch.inputs[spec.name].shape)
            .tolist()
            for spec, flat in pairs
        }


class InGraphs:
    """A model that takes what these graphs take."""

    buckets = ()

    def __init__(self, gpu: PackedGpu) -> None:
        self.inputs, self.outputs = gpu.inputs, (EACH, ROW)
        self.packed_shapes = gpu.packed_shapes
        self.graphs = gpu.handed.runner

    def padding_is(self, safe: bool) -> None:
        """Do nothing: it is."""


def items_of(lengths: Sequence[int]) -> UnequalItems:
    chance = np.random.default_rng([len(lengths), *lengths])
    tokens = [chance.integers(1, 99, (length, 2), np.int8) for length in lengths]
    scale = [chance.integers(5, 99, 3, np.int8) for _ in lengths]
    return UnequalItems(len(lengths), {"TOKENS": tokens, "SCALE": scale})


def order(items: UnequalItems, room: int = ROOM // 2, run: int = 1) -> RunBatch:
    members = [BatchMember(i * ROOM, 1, 0, i * ROOM + ROOM // 2, room) for i in range(items.size)]
    columns = zip(items.arrays["TOKENS"], items.arrays["SCALE"], strict=True)
    shapes: list[Shapes | None] = [[((1, *one.shape), one.nbytes) for one in item] for item in columns]
    return RunBatch(run, 0, packed(members), 0, shapes)


def written(world: GpuWorld, items: UnequalItems) -> None:
    for i, (tokens, scale) in enumerate(zip(items.arrays["TOKENS"], items.arrays["SCALE"], strict=True)):
        block = tokens.tobytes().ljust(SCALE_AT, b"\x99") + scale.tobytes()
        world.memory.view[i * ROOM : i * ROOM + len(block)] = block


def served(gpu: PackedGpu, items: UnequalItems, run: RunBatch | None = None) -> tuple[Any, GpuWorld]:
    world = GpuWorld(gpu, [(8 * MS, run or order(items))])
    written(world, items)
    (news,) = world.serve()
    return news, world


def check(news: Any, world: GpuWorld, items: UnequalItems) -> None:
    assert isinstance(news, BatchDone), news
    for i, (tokens, scale) in enumerate(zip(items.arrays["TOKENS"], items.arrays["SCALE"], strict=True)):
        assert news.shapes is not None
        assert news.shapes[i] == [((1, *tokens.shape), tokens.nbytes), ((1, 3), 3)]
        at = i * ROOM + ROOM // 2
        each = np.frombuffer(world.memory.view, np.int8, tokens.size, at)
        row = np.frombuffer(world.memory.view, np.int8, 3, at + -(-tokens.nbytes // 64) * 64)
        assert each.tolist() == (-tokens).ravel().tolist()
        assert row.tolist() == (-scale).tolist()


def as_python_has_it(gpu: PackedGpu, items: UnequalItems) -> Batch:
    (part,) = replace(together(gpu.inputs, InGraphs(gpu)), allowed=True).parts(items)
    return part.batch


def drawn(count: int) -> list[list[int]]:
    chance = np.random.default_rng(count)
    sizes = chance.integers(1, LARGEST, count, endpoint=True)
    return [chance.integers(LOW, HIGH, size, endpoint=True).tolist() for size in sizes]


@pytest.mark.parametrize(
    "lengths", [[LOW], [HIGH], [HIGH] * LARGEST, [LOW] * LARGEST, [3, 16, 2], *drawn(20)]
)
def test_a_graph_is_given_what_python_gives_it_and_answers_are_cut(library: Path, lengths: list[int]) -> None:
    gpu, items = PackedGpu(library), items_of(lengths)
    check(*served(gpu, items), items)
    batch = as_python_has_it(gpu, items)
    assert PackedShape(len(batch.inputs["TOKENS"]), len(batch.inputs["SCALE"])) in gpu.packed_shapes
    assert gpu.read(batch) == {name: array.tolist() for name, array in batch.inputs.items()}


def test_one_batch_leaves_nothing_to_the_next(library: Path) -> None:
    gpu, large, small = PackedGpu(library), items_of([HIGH] * LARGEST), items_of([3])
    world = GpuWorld(gpu, [(8 * MS, order(large)), (30 * MS, order(small, run=2))])
    written(world, large)
    list(world.serve())
    news, world = served(gpu, small)
    check(news, world, small)
    batch = as_python_has_it(gpu, small)
    assert gpu.read(batch) == {name: array.tolist() for name, array in batch.inputs.items()}


def test_batches_in_flight_keep_their_items(library: Path) -> None:
    gpu, items = PackedGpu(library), items_of([16, 2, 9])
    world = GpuWorld(
        gpu, [(8 * MS, order(items)), (9 * MS, order(items, run=2)), (9 * MS, order(items, run=3))]
    )
    written(world, items)
    news = world.serve()
    assert [one.tag for one in news if isinstance(one, BatchDone)] == [1, 2, 3]
    for one in news:
        check(one, world, items)


@pytest.mark.parametrize("lengths", [[HIGH] * (LARGEST + 1), [HIGH] * 64])
def test_more_than_the_largest_graph_takes_is_for_python(library: Path, lengths: list[int]) -> None:
    gpu = PackedGpu(library)
    items = items_of(lengths)
    assert not as_python_has_it(gpu, items).rest
    run = RunBatch(1, 0, packed([BatchMember(0, 1, 0, 512, 512)] * len(lengths)), 0, order(items).shapes)
    world = GpuWorld(gpu, [(8 * MS, run)])
    (news,) = world.serve()
    assert isinstance(news, BatchBroken)
    assert "model 0 is not loaded" in news.error  # Python has no such model here
    assert not [line for line in gpu.log() if "graph" in line]


def test_what_is_wrong_is_for_python_to_say(library: Path) -> None:
    items, empty = items_of([4, 4]), items_of([4, 0])
    good = order(items)
    shapes = good.shapes or []
    for bad in (
        order(items, room=3),
        order(empty),
        RunBatch(1, 0, good.members, 0, [[], *shapes[1:]]),
        RunBatch(1, 0, good.members, 0, None),
    ):
        news, _ = served(PackedGpu(library), items, bad)
        assert isinstance(news, BatchBroken), bad


@pytest.mark.parametrize(
    ("size", "length", "natively"), [(3, 16, True), (1, 2, True), (LARGEST + 1, HIGH, False)]
)
def test_a_batch_is_measured_in_the_graph_of_its_total(
    library: Path, size: int, length: int, natively: bool
) -> None:
    gpu = PackedGpu(library, takes=0)
    model: Any = InGraphs(gpu)
    tokens = np.arange(size * length * 2, dtype=np.int8).reshape(size, length, 2)
    batch = batches.alike(gpu.inputs, {"TOKENS": tokens, "SCALE": np.full((size, 3), 7, np.int8)})
    assert batches.length_of(gpu.inputs, batch) == size * length
    runner = graph_runner(model, size, batches.length_of(gpu.inputs, batch))
    assert (runner is not None) == natively
    if natively:
        assert len(RepeatedOrder(model, batch).carried_out(3)) == 3
        gpu.handed.runner.finish()


def test_items_are_packed_along_their_first_dimension() -> None:
    module: Any = extension("_worker")
    with pytest.raises(ValueError, match="X: expected nothing open but its first dimension"):
        module.OpenShapes([("X", "INT8", (2, -1))], [("", b"\0")], [], 8, (1, 4))
