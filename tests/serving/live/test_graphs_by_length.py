"""Graphs of items that have a length, run by native code on a driver without a GPU.

A graph negates the tokens that it is given; what else it reads is looked at in its static inputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astrarium.core.optional import extension
from astrarium.serving.live import fills
from astrarium.serving.live.backends.contract import Batch, graph_runner
from astrarium.serving.live.backends.torch.graph_shapes import GraphShape, GraphShapes
from astrarium.serving.live.backends.torch.graphs import Captured, CapturedGraphs
from astrarium.serving.live.messages import BatchBroken, BatchDone, BatchMember, RunBatch, Shapes, packed
from astrarium.serving.live.tensors import DATATYPES, TensorSpec
from astrarium.serving.live.worker.padding import Padding
from astrarium.serving.live.worker.repeated_order import RepeatedOrder
from tests.serving.live.test_graphs import FakeTorch, Gpu, GpuWorld, Graph
from tests.serving.live.world import MS

TOKENS = TensorSpec("TOKENS", "INT8", (-1,))
OUTPUT = TensorSpec("OUTPUT", "INT8", (-1,))
LARGEST = {4: 8, 8: 4}  # sizes, by length
ROOM = 1 << 10  # bytes of a member's block, half of which are for its reply


class FakeGraph:
    def __init__(self, source: Any, left: Any, count: int, takes: int) -> None:
        self._graph = Graph(source.data_ptr(), left.data_ptr(), count, takes, 0)

    def raw_cuda_graph_exec(self) -> int:
        return ctypes.addressof(self._graph)

    def replay(self) -> None:
        """Do nothing: only random numbers are looked at."""


class LengthsGpu(Gpu):
    """A GPU with one model; clients send the first of its inputs, and the output is that, negated."""

    def __init__(
        self,
        library: Path,
        inputs: Sequence[TensorSpec],
        output: TensorSpec,
        pads: bool,
        takes: int = 0,
        **fill: str,
    ) -> None:
        super().__init__(library)
        torch = FakeTorch(pytest.importorskip("torch"))
        self.inputs = fills.marked(inputs, fill.get("lengths", ""), fill.get("mask", ""))
        shapes = GraphShapes(self.inputs, LARGEST)
        self.flat = [torch.zeros((shapes.room(spec),), torch_type(spec)) for spec in self.inputs]
        left = torch.zeros((shapes.room(output),), torch_type(output))
        graphs = {}
        for length, largest in LARGEST.items():
            for size in (1, largest // 2, largest):
                shape = size, *shapes.item(output, length)
                count = int(np.prod(shape))
                outputs = {output.name: left[:count].view(shape)}
                graphs[GraphShape(size, length)] = Captured(
                    FakeGraph(self.flat[0], left, count, takes), outputs
                )
        device = SimpleNamespace(index=0)
        captured = CapturedGraphs(torch, device, graphs, self.flat, shapes, [output])
        assert captured.needs_python() == ""
        self.handed = captured.handed_over(extension("_worker"), self.streams)
        if pads:
            self.handed.runner.allow_padding()
        self.runners = [self.handed.runner]

    def read(self, name: str, *shape: int) -> Any:
        place = [spec.name for spec in self.inputs].index(name)
        return self.flat[place].numpy()[: int(np.prod(shape))].reshape(shape).tolist()


def torch_type(spec: TensorSpec) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(np.empty(0, DATATYPES[spec.datatype])).dtype


def items_of(shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    return [
        np.arange(1, 1 + np.prod(shape), dtype=np.int8).reshape(shape) + i for i, shape in enumerate(shapes)
    ]


def order(items: Sequence[Any], room: int = ROOM // 2) -> RunBatch:
    members = [BatchMember(i * ROOM, 1, 0, i * ROOM + ROOM // 2, room) for i in range(len(items))]
    return RunBatch(1, 0, packed(members), 0, [[((1, *item.shape), item.nbytes)] for item in items])


def served(gpu: LengthsGpu, items: Sequence[Any], run: RunBatch | None = None) -> tuple[Any, GpuWorld]:
    world = GpuWorld(gpu, [(8 * MS, run or order(items))])
    for i, item in enumerate(items):
        world.memory.view[i * ROOM : i * ROOM + item.nbytes] = item.tobytes()
    (news,) = world.serve()
    return news, world


def check(news: Any, world: GpuWorld, items: Sequence[Any]) -> None:
    assert isinstance(news, BatchDone)
    assert news.shapes == [[((1, *item.shape), item.nbytes)] for item in items]
    for i, item in enumerate(items):
        answer = np.frombuffer(world.memory.view, np.int8, item.size, i * ROOM + ROOM // 2)
        assert answer.tolist() == (-item).ravel().tolist()


@pytest.mark.parametrize("lengths", [[3], [8], [3, 5, 2], [1, 2, 3, 4, 4, 3, 2, 1], [1, 8, 1, 8]])
def test_items_are_padded_to_a_graph_and_answers_cut(library: Path, lengths: list[int]) -> None:
    items = items_of([(length,) for length in lengths])
    gpu = LengthsGpu(library, [TOKENS], OUTPUT, pads=True)
    news, world = served(gpu, items)
    check(news, world, items)
    length = min(one for one in LARGEST if one >= max(lengths))
    rows = gpu.read("TOKENS", len(items), length)
    assert rows == [[*item.tolist(), *[0] * (length - len(item))] for item in items]


def test_what_the_server_fills_is_filled_also_behind_the_batch(library: Path) -> None:
    mask, lengths = TensorSpec("MASK", "INT64", (-1,)), TensorSpec("LENGTHS", "INT32", (1,))
    gpu = LengthsGpu(library, [TOKENS, mask, lengths], OUTPUT, True, mask="MASK", lengths="LENGTHS")
    items = items_of([(3,), (6,), (1,)])
    check(*served(gpu, items), items)
    wanted = Padding(gpu.inputs, True, ((4, 8),))
    whole = np.zeros((3, 8), np.int8)
    for row, item in zip(whole, items, strict=True):
        row[: len(item)] = item
    own = {"TOKENS": [item.shape for item in items]}
    batch = Batch(3, fills.filled(gpu.inputs, {"TOKENS": whole}, own), (), own)
    expected = wanted.with_rows(batch, 4).inputs
    assert gpu.read("MASK", 4, 8) == expected["MASK"].tolist()
    assert gpu.read("LENGTHS", 4, 1) == expected["LENGTHS"].tolist()
    assert gpu.read("TOKENS", 4, 8) == expected["TOKENS"].tolist()


def test_a_mask_has_the_length_where_its_own_dimension_is_open(library: Path) -> None:
    mask = TensorSpec("MASK", "INT8", (1, 1, -1))
    gpu = LengthsGpu(library, [TOKENS, mask], OUTPUT, True, mask="MASK")
    items = items_of([(3,), (6,), (1,)])
    check(*served(gpu, items), items)
    rows = [[1] * 3 + [0] * 5, [1] * 6 + [0] * 2, [1] + [0] * 7, [1] * 8]
    assert gpu.read("MASK", 4, 1, 1, 8) == [[[row]] for row in rows]


def test_padding_is_within_the_values_that_an_input_takes(library: Path) -> None:
    gpu = LengthsGpu(library, [TensorSpec("TOKENS", "INT8", (-1,), (1, 99))], OUTPUT, pads=True)
    items = items_of([(3,), (2,), (4,)])
    check(*served(gpu, items), items)
    assert gpu.read("TOKENS", 4, 4) == [[1, 2, 3, 1], [2, 3, 1, 1], [3, 4, 5, 6], [1, 1, 1, 1]]


def test_the_open_dimension_may_be_an_inner_one(library: Path) -> None:
    spec = TensorSpec("TOKENS", "INT8", (2, -1, 3))
    gpu = LengthsGpu(library, [spec], TensorSpec("OUTPUT", "INT8", (2, -1, 3)), pads=True)
    items = items_of([(2, 1, 3), (2, 5, 3)])
    check(*served(gpu, items), items)
    first = np.array(gpu.read("TOKENS", 2, 2, 8, 3))[0]
    assert first[:, :1].tolist() == items[0].tolist()
    assert not first[:, 1:].any()


def test_batches_in_flight_keep_their_lengths(library: Path) -> None:
    gpu = LengthsGpu(library, [TOKENS], OUTPUT, pads=True, takes=5 * MS)
    long, short = items_of([(8,)] * 3), items_of([(2,)] * 3)
    first, second = order(long), order(short)
    moved = [BatchMember(i * ROOM + 128, 1, 0, i * ROOM + ROOM // 2 + 128, 64) for i in range(3)]
    second = RunBatch(2, 0, packed(moved), 0, second.shapes)
    script = [(8 * MS, first), (9 * MS, second)]
    world = GpuWorld(gpu, script)
    for i, (one, other) in enumerate(zip(long, short, strict=True)):
        world.memory.view[i * ROOM : i * ROOM + 8] = one.tobytes()
        world.memory.view[i * ROOM + 128 : i * ROOM + 130] = other.tobytes()
    news = world.serve()
    assert [one.tag for one in news if isinstance(one, BatchDone)] == [1, 2]
    for i, (one, other) in enumerate(zip(long, short, strict=True)):
        at = i * ROOM + ROOM // 2
        assert np.frombuffer(world.memory.view, np.int8, 8, at).tolist() == (-one).tolist()
        assert np.frombuffer(world.memory.view, np.int8, 2, at + 128).tolist() == (-other).tolist()


@pytest.mark.parametrize("lengths", [[4], [8, 8], [4, 4, 4]])
def test_without_padding_equal_lengths_of_a_graph_run_in_it(library: Path, lengths: list[int]) -> None:
    items = items_of([(length,) for length in lengths])
    check(*served(LengthsGpu(library, [TOKENS], OUTPUT, pads=False), items), items)


def wrong_bytes(items: Sequence[Any]) -> RunBatch:
    good = order(items)
    shapes: list[Shapes | None] = [
        [(shape, size + 1) for shape, size in own or []] for own in good.shapes or []
    ]
    return RunBatch(1, 0, good.members, 0, shapes)


@pytest.mark.parametrize(
    ("lengths", "pads"),
    [
        ([4, 3], False),
        ([3, 3], False),
        ([9], True),  # longer than every graph
        ([8] * 5, True),  # more than the graph of that length has room for
        ([2] * 9, True),
    ],
)
def test_other_batches_are_for_python(library: Path, lengths: list[int], pads: bool) -> None:
    gpu = LengthsGpu(library, [TOKENS], OUTPUT, pads)
    news, _ = served(gpu, items_of([(length,) for length in lengths]))
    assert isinstance(news, BatchBroken)
    assert "model 0 is not loaded" in news.error  # Python has no such model here
    assert not [line for line in gpu.log() if "graph" in line]


def test_what_is_wrong_is_for_python_to_say(library: Path) -> None:
    items = items_of([(4,), (4,)])
    good = order(items)
    shapes = good.shapes or []
    for bad in (
        order(items, room=3),
        wrong_bytes(items),
        RunBatch(1, 0, good.members, 0, [[((2, 4), 8)], *shapes[1:]]),
        RunBatch(1, 0, good.members, 0, [[], *shapes[1:]]),
        RunBatch(1, 0, good.members, 0, None),
    ):
        news, _ = served(LengthsGpu(library, [TOKENS], OUTPUT, pads=True), items, bad)
        assert isinstance(news, BatchBroken), bad


def test_inputs_of_one_axis_must_be_of_one_length(library: Path) -> None:
    gpu = LengthsGpu(library, [TOKENS, TensorSpec("TYPES", "INT8", (-1,))], OUTPUT, pads=True)
    member = packed([BatchMember(0, 1, 0, 512, 64)])
    for types, kind in ((4, BatchDone), (3, BatchBroken)):
        run = RunBatch(1, 0, member, 0, [[((1, 4), 4), ((1, types), types)]])
        news, _ = served(gpu, items_of([(4,)]), run)
        assert isinstance(news, kind)


@pytest.mark.parametrize(
    ("size", "length", "natively"), [(3, 8, True), (1, 4, True), (2, 5, False), (5, 8, False)]
)
def test_a_batch_is_measured_in_the_graph_of_its_length(
    library: Path, size: int, length: int, natively: bool
) -> None:
    mask = TensorSpec("MASK", "BOOL", (-1,))
    gpu = LengthsGpu(library, [TOKENS, mask], OUTPUT, pads=False, mask="MASK")
    model: Any = SimpleNamespace(inputs=gpu.inputs, outputs=(OUTPUT,), graphs=gpu.handed.runner)
    assert (graph_runner(model, size, length) is not None) == natively
    if not natively:
        return
    values = np.arange(size * length, dtype=np.int8).reshape(size, length)
    repeated = RepeatedOrder(model, Batch(size, fills.complete(gpu.inputs, {"TOKENS": values})))
    assert len(repeated.carried_out(3)) == 3
    assert gpu.read("MASK", size, length) == [[True] * length] * size
    gpu.handed.runner.finish()


def test_a_graph_of_a_length_needs_a_length(library: Path) -> None:
    gpu = LengthsGpu(library, [TOKENS], OUTPUT, pads=True)
    for length in (0, 9):
        with pytest.raises(ValueError, match=f"length: expected up to 8, got {length}"):
            gpu.handed.runner.add(1, 1, [1], length)
    with pytest.raises(ValueError, match="length: expected up to 0, got 4"):
        Gpu(library).runners[0].add(1, 1, [1], 4)
