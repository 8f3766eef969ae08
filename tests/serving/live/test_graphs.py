"""Batches of models in CUDA graphs, run by native code on a driver without a GPU, in virtual time."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from astrarium.core.optional import extension
from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.backends.torch.graph_shapes import GraphShape, GraphShapes
from astrarium.serving.live.backends.torch.graphs import Captured, CapturedGraphs
from astrarium.serving.live.messages import (
    BatchBroken,
    BatchCancelled,
    BatchDone,
    BatchMember,
    CancelBatch,
    RunBatch,
    Stop,
    WorkerBroken,
    packed,
)
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker import device_health
from astrarium.serving.live.worker.lead import measured_lead
from astrarium.serving.live.worker.repeated_order import RepeatedOrder
from astrarium.serving.live.worker.worker import GAVE_UP
from tests.serving.live.world import MS, US, World

ITEM = 64
LARGEST = 8
TAKES = 5 * MS
ROOMS = (1, 4, LARGEST)


class Stream(ctypes.Structure):
    _fields_ = (("free", ctypes.c_longlong), ("name", ctypes.c_char_p))


class Graph(ctypes.Structure):
    _fields_ = (
        ("source", ctypes.c_void_p),
        ("to", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("takes", ctypes.c_longlong),
        ("fails", ctypes.c_int),
    )


class Gpu:
    """Two models of one input and one output, whose graphs negate bytes and take *takes*."""

    def __init__(self, library: Path, takes: int = TAKES) -> None:
        self.driver = ctypes.CDLL(str(library))
        self.driver.fake_log.restype = ctypes.c_char_p
        self.driver.fake_set_time.argtypes = [ctypes.c_longlong]
        self.driver.fake_set_time(0)
        self.driver.fake_recover()
        self.driver.fake_forget()
        self._kept: list[Any] = []
        streams = [self._keep(Stream(0, name)) for name in (b"copy_in", b"compute", b"copy_out")]
        module: Any = extension("_worker")
        addresses = [ctypes.addressof(stream) for stream in streams]
        self.static = self._memory()
        self.left = self._memory()
        slots = [tuple([self._memory()] for _ in range(4)) for _ in range(2)]
        self.streams = module.GpuStreams(str(library), *addresses)
        self.graphs = [Graph(self.static, self.left, room * ITEM, takes, 0) for room in ROOMS]
        self.runners = [module.GraphRunner(self.streams, [(self.static, ITEM)], [ITEM], slots) for _ in "ab"]
        for runner in self.runners:
            for room, graph in zip(ROOMS, self.graphs, strict=True):
                runner.add(room, ctypes.addressof(graph), [self.left])

    def log(self) -> list[str]:
        log: bytes = self.driver.fake_log()
        return log.decode().splitlines()

    def _memory(self) -> int:
        return int(self._keep(np.full(LARGEST * ITEM, 77, np.int8)).ctypes.data)

    def _keep(self, handle: Any) -> Any:
        self._kept.append(handle)
        return handle


class GpuWorld(World):
    """The world of a worker whose native code knows a model in graphs; the GPU's clock is the world's."""

    natively = True

    def __init__(self, gpu: Gpu, script: Sequence[tuple[int, Any]], **late: int) -> None:
        self.gpu = gpu
        super().__init__([*script, (1000 * MS, Stop())], **late)

    @property
    def now(self) -> int:
        return self._now

    @now.setter
    def now(self, now: int) -> None:
        self._now = now
        self.gpu.driver.fake_set_time(now)

    def _native(self) -> Any:
        native = super()._native()
        for number, runner in enumerate(self.gpu.runners):
            native.know_graphs(number, runner)
        return native


def run(number: int, size: int = 1, start: int = 0, room: int = ITEM, model: int = 0) -> RunBatch:
    members = [BatchMember(i * 512, 1, 0, i * 512 + 256, room) for i in range(size)]
    return RunBatch(number, model, packed(members), start)


def done(news: Any) -> BatchDone:
    assert isinstance(news, BatchDone)
    return news


def filled(world: GpuWorld, size: int) -> Any:
    values = np.arange(size * ITEM, dtype=np.int8).reshape(size, ITEM)
    for i, row in enumerate(values):
        world.memory.view[i * 512 : i * 512 + ITEM] = row.tobytes()
    return values


def replies(world: GpuWorld, size: int) -> Any:
    return np.stack([np.frombuffer(world.memory.view, np.int8, ITEM, i * 512 + 256) for i in range(size)])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_answers_are_what_the_graph_made_of_the_inputs(library: Path, size: int) -> None:
    world = GpuWorld(Gpu(library), [(8 * MS, run(1, size))])
    values = filled(world, size)
    (only,) = map(done, world.serve())
    assert (replies(world, size) == -values).all()
    room = min(one for one in ROOMS if one >= size)
    static = (ctypes.c_int8 * (LARGEST * ITEM)).from_address(world.gpu.static)
    assert set(static[size * ITEM : room * ITEM]) <= {0}  # the rest of the graph's room is empty
    assert only.computed - only.started == pytest.approx(TAKES, abs=US)
    assert (only.received, only.started) == (8 * MS, 8 * MS)


def test_a_lone_batch_goes_through_one_stream(library: Path) -> None:
    world = GpuWorld(Gpu(library), [(8 * MS, run(1, 3))])
    world.serve()
    assert world.gpu.log() == [
        f"compute in {3 * ITEM}",
        f"compute clear {ITEM}",
        f"compute graph {4 * ITEM}",
        f"compute out {3 * ITEM}",
    ]


def test_a_batch_behind_another_is_copied_while_that_one_runs(library: Path) -> None:
    world = GpuWorld(Gpu(library), [(8 * MS, run(1)), (9 * MS, run(2, 2))])
    values = filled(world, 2)
    first, second = map(done, world.serve())
    assert world.gpu.log()[3:] == [
        f"copy_in in {2 * ITEM}",
        "compute follow 0",
        f"compute within {2 * ITEM}",
        f"compute clear {2 * ITEM}",
        f"compute graph {4 * ITEM}",
        f"compute within {2 * ITEM}",
        "copy_out follow 0",
        f"copy_out out {2 * ITEM}",
    ]
    assert second.started == pytest.approx(first.computed, abs=US)
    assert (replies(world, 2) == -values).all()


def test_a_third_batch_waits_for_memory_and_none_is_lost(library: Path) -> None:
    script = [(8 * MS + i, run(i + 1, 1 + i % 3)) for i in range(7)]
    world = GpuWorld(Gpu(library), script)
    values = filled(world, 3)
    news = list(map(done, world.serve()))
    assert [one.tag for one in news] == [1, 2, 3, 4, 5, 6, 7]
    starts = [one.started for one in news]
    assert starts == pytest.approx([8 * MS + i * TAKES for i in range(7)], abs=100 * US)
    assert (replies(world, 3) == -values).all()


def test_a_batch_starts_no_earlier_than_it_should(library: Path) -> None:
    (only,) = map(done, GpuWorld(Gpu(library), [(8 * MS, run(1, start=20 * MS))]).serve())
    assert only.started == 20 * MS


def test_a_batch_is_stopped_before_its_start_and_dropped_after_it(library: Path) -> None:
    before = GpuWorld(Gpu(library), [(8 * MS, run(1, start=20 * MS)), (9 * MS, CancelBatch(1, MS))])
    assert before.serve() == [BatchCancelled(1, 9 * MS, 9 * MS)]
    script = [(8 * MS, run(1)), (9 * MS, CancelBatch(1, MS)), (9 * MS, run(2))]
    dropped, second = GpuWorld(Gpu(library), script).serve()
    assert isinstance(dropped, BatchCancelled)
    assert dropped.stopped >= 8 * MS + TAKES  # a GPU cannot be stopped, but nobody waits for the answers
    assert done(second).started >= dropped.stopped


def test_batches_that_were_launched_and_cancelled_do_not_confuse_the_clock(library: Path) -> None:
    """Both wait on the GPU behind another model's batch, and nobody looks when they end."""
    ahead = [(20 * MS, run(2, model=1)), (20 * MS, run(3)), (20 * MS, run(4))]
    dropped = [(21 * MS, CancelBatch(3, 0)), (21 * MS, CancelBatch(4, 0))]
    script = [(8 * MS, run(1)), *ahead, *dropped, (22 * MS, run(5)), (22 * MS, run(6)), (22 * MS, run(7))]
    news = GpuWorld(Gpu(library), script).serve()
    assert [one.tag for one in news if isinstance(one, BatchCancelled)] == [3, 4]
    finished = [done(one) for one in news if not isinstance(one, BatchCancelled)]
    assert [one.tag for one in finished] == [1, 2, 5, 6, 7]
    assert all(one.computed - one.started == pytest.approx(TAKES, abs=US) for one in finished)


def test_a_graph_that_fails_breaks_its_batch_and_no_other(library: Path) -> None:
    gpu = Gpu(library)
    gpu.graphs[1].fails = 1
    broken, good = GpuWorld(gpu, [(8 * MS, run(1, 3)), (30 * MS, run(2, 1))]).serve()
    assert isinstance(broken, BatchBroken)
    assert broken.error == "ModelFailed: cuGraphLaunch: the fake GPU failed"
    assert done(good).started == 30 * MS


@pytest.mark.parametrize("error", [700, 710, 719])
def test_an_error_that_the_context_does_not_survive_ends_the_worker_and_names_the_batch(
    library: Path, error: int
) -> None:
    """It shows while the batch behind it is with the GPU already; that one is not to blame."""
    gpu = Gpu(library)
    gpu.graphs[1].fails = error
    world = GpuWorld(gpu, [(0, run(1, 1)), (0, run(2, 4)), (0, run(3, 1))])
    done, broken = world.serve()
    assert isinstance(done, BatchDone)
    assert isinstance(broken, WorkerBroken)
    assert broken.tag == 2
    assert (error != 710) or "device-side assert triggered" in broken.error
    assert world.left == GAVE_UP


def test_the_health_of_a_gpu_is_asked_of_its_driver(library: Path) -> None:
    gpu = Gpu(library)
    assert device_health.lost(str(library)) == ""
    gpu.graphs[0].fails = 710
    gpu.driver.cuGraphLaunch(ctypes.byref(gpu.graphs[0]), ctypes.byref(Stream(0, b"compute")))
    gpu.driver.fake_set_time(10 * TAKES)
    assert device_health.lost(str(library)) == "lost GPU 0: device-side assert triggered"
    assert device_health.lost("libno_such_driver.so") == ""


def test_a_graph_that_is_added_while_batches_run_takes_the_next_ones(library: Path) -> None:
    gpu = Gpu(library)
    small = Graph(gpu.static, gpu.left, 2 * ITEM, TAKES // 2, 0)

    class Adding(GpuWorld):
        def recv_into(self, buffer: memoryview) -> int:
            if self.news[1:] and self._script[0][0] == 30 * MS:
                gpu.runners[0].add(2, ctypes.addressof(small), [gpu.left])
            return super().recv_into(buffer)

    world = Adding(gpu, [(8 * MS, run(1, 2)), (30 * MS, run(2, 2))])
    values = filled(world, 2)
    first, second = map(done, world.serve())
    assert first.computed - first.started == pytest.approx(TAKES, abs=US), "in the graph for 4"
    assert second.computed - second.started == pytest.approx(TAKES // 2, abs=US)
    assert (replies(world, 2) == -values).all()


@pytest.mark.parametrize("order", [run(1, LARGEST + 1), run(1, room=ITEM - 1)])
def test_what_native_code_cannot_run_is_explained_by_python(library: Path, order: RunBatch) -> None:
    (news,) = GpuWorld(Gpu(library), [(8 * MS, order)]).serve()
    assert isinstance(news, BatchBroken)
    assert "model 0 is not loaded" in news.error  # Python has no such model here


class FakeTorch:
    """PyTorch without CUDA: memory is the host's, and graphs are those of the fake driver."""

    def __init__(self, torch: Any, offsets: Sequence[int] = (0, 0)) -> None:
        next_offset = iter(offsets)
        generator = SimpleNamespace(get_offset=lambda: next(next_offset))
        self.cuda = SimpleNamespace(default_generators=[generator], synchronize=lambda device: None)
        self._torch = torch
        self.from_numpy = torch.from_numpy

    def zeros(self, shape: tuple[int, ...], dtype: Any, **where: Any) -> Any:
        return self._torch.zeros(shape, dtype=dtype)


class FakeGraph:
    def __init__(self, source: Any, left: Any, room: int) -> None:
        self._graph = Graph(source.data_ptr(), left.data_ptr(), room * ITEM, 0, 0)

    def raw_cuda_graph_exec(self) -> int:
        return ctypes.addressof(self._graph)

    def replay(self) -> None:
        """Do nothing: only random numbers are looked at."""


class OldGraph:
    """A graph of a PyTorch that does not tell where it is."""


INPUT = TensorSpec("INPUT", "INT8", (ITEM,))
OUTPUT = TensorSpec("OUTPUT", "INT8", (ITEM,))
SHAPES = GraphShapes((INPUT,), {0: LARGEST})


def captured(
    offsets: Sequence[int] = (0, 0), output: TensorSpec = OUTPUT, taken: TensorSpec = INPUT
) -> CapturedGraphs:
    torch = pytest.importorskip("torch")
    static, left = (torch.zeros(LARGEST, ITEM, dtype=torch.int8) for _ in range(2))
    graphs = {
        GraphShape(room): Captured(FakeGraph(static, left, room), {"OUTPUT": left[:room]}) for room in ROOMS
    }
    device = SimpleNamespace(index=0)
    shapes = GraphShapes((taken,), SHAPES.largest)
    return CapturedGraphs(FakeTorch(torch, offsets), device, graphs, [static], shapes, [output])


def test_graphs_that_were_handed_over_run_without_python(library: Path) -> None:
    graphs = captured()
    gpu = Gpu(library)
    assert graphs.needs_python() == ""
    handed = graphs.handed_over(extension("_worker"), gpu.streams)
    model = SimpleNamespace(inputs=[INPUT], outputs=[OUTPUT], graphs=handed.runner)
    values = np.arange(2 * ITEM, dtype=np.int8).reshape(2, ITEM)
    order = RepeatedOrder(model, Batch(2, {"INPUT": values}))
    assert len(order.carried_out(4)) == 4
    answers = np.frombuffer(order.memory, np.int8, 2 * ITEM, 2 * ITEM)
    assert (answers.reshape(2, ITEM) == -values).all()
    handed.runner.finish()


def test_behind_a_batch_is_what_the_input_takes(library: Path) -> None:
    graphs = captured(taken=TensorSpec("INPUT", "INT8", (ITEM,), (3, 100)))
    handed = graphs.handed_over(extension("_worker"), Gpu(library).streams)
    model = SimpleNamespace(inputs=[INPUT], outputs=[OUTPUT], graphs=handed.runner)
    values = np.full((2, ITEM), 7, np.int8)
    RepeatedOrder(model, Batch(2, {"INPUT": values})).carried_out(4)
    (static,) = graphs.static
    assert (static[:2] == 7).all()
    assert (static[2:4] == 3).all(), "zeros would be no row of a table that begins with 3"
    handed.runner.finish()


class Launched(NamedTuple):
    """A batch that Python launched on a GPU which takes no time."""

    began: int

    def wait(self, free: int) -> Launched:
        return self


def test_a_batch_beyond_the_largest_graph_is_measured_as_python_runs_it(library: Path) -> None:
    # which hold the memory
    graphs = captured()
    gpu = Gpu(library)
    handed = graphs.handed_over(extension("_worker"), gpu.streams)
    by_python: list[int] = []

    def launch(batch: Batch, now: int) -> Launched:
        by_python.append(batch.size)
        return Launched(now)

    model: Any = SimpleNamespace(
        inputs=[INPUT], outputs=[OUTPUT], graphs=handed.runner, launch=launch, staging=lambda size: {}
    )
    assert measured_lead(model, LARGEST + 1, lambda: 0) >= (0, 0)
    assert set(by_python) == {LARGEST + 1}


def test_a_graph_that_leaves_something_else_is_not_handed_over(library: Path) -> None:
    graphs = captured()
    gpu = Gpu(library)
    rest = {GraphShape(room): graphs.graphs[GraphShape(room)] for room in (1, LARGEST)}
    handed = graphs._replace(graphs=rest).handed_over(extension("_worker"), gpu.streams)
    graph, outputs, *_ = graphs.graphs[GraphShape(4)]
    handed.add(GraphShape(4), Captured(graph, {"OUTPUT": outputs["OUTPUT"].float()}))
    handed.add(GraphShape(2), Captured(graph, {"OUTPUT": outputs["OUTPUT"][:2]}))
    model = SimpleNamespace(inputs=[INPUT], outputs=[OUTPUT], graphs=handed.runner)
    for size in (2, 3):
        RepeatedOrder(model, Batch(size, {"INPUT": np.zeros((size, ITEM), np.int8)})).carried_out(1)
    launched = [line for line in gpu.log() if "graph" in line]
    assert launched == [f"compute graph {4 * ITEM}", f"compute graph {LARGEST * ITEM}"]
    handed.runner.finish()


def test_graphs_that_need_python_say_why() -> None:
    assert captured(offsets=(0, 4)).needs_python() == "it draws random numbers"
    other = captured(output=TensorSpec("OUTPUT", "FP16", (ITEM,)))
    assert "something else than the output OUTPUT of FP16" in other.needs_python()
    short = captured()
    short.graphs[GraphShape(1)].outputs["OUTPUT"].resize_(0, ITEM)
    assert "something else" in short.needs_python()
    old = captured()._replace(graphs={GraphShape(LARGEST): Captured(OldGraph(), {})})
    assert "does not tell where its graphs are" in old.needs_python()
