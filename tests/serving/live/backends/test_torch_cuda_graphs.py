"""The logic around CUDA graphs and streams, without CUDA.

A graph is what the model did while it was captured, and streams take virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import local
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astrarium.serving.live.backends import backends
from astrarium.serving.live.backends import torch as torch_backend
from astrarium.serving.live.backends.contract import Batch, Place
from astrarium.serving.live.backends.torch import cuda_runner, graph_shapes, programs
from astrarium.serving.live.backends.torch.cuda_runner import CudaBatch, CudaRunner
from astrarium.serving.live.backends.torch.graph_shapes import GraphShape, GraphShapes, first_sizes
from astrarium.serving.live.backends.torch.programs import Program
from astrarium.serving.live.fills import marked
from astrarium.serving.live.messages import plain_files
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker import preparing
from tests.serving.live.backends.torch_models import NET, X, files, load, rows

torch = pytest.importorskip("torch")

MS = 1_000_000
COMPUTING = 5 * MS
COPYING = MS


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


class Graph:
    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake
        self.steps = list[Any]()

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local", "other threads run batches"
        self.fake.capturing = self

    def capture_end(self) -> None:
        self.fake.capturing = None

    def replay(self) -> None:
        for step in self.steps:
            step()


class Stream:
    """Whatever it is given is done one by one; one that *copies* takes COPYING for each batch."""

    def __init__(self, fake: FakeCuda, copies: bool) -> None:
        self.fake = fake
        self.copies = copies
        self.free = 0

    def spend(self, time: int) -> None:
        self.free = max(self.free, self.fake.now) + time

    def wait_event(self, event: Event) -> None:
        self.free = max(self.free, event.at)

    def synchronize(self) -> None:
        self.fake.now = max(self.fake.now, self.free)


class Event:
    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake
        self.at = 0

    def record(self, stream: Stream) -> None:
        stream.spend(COPYING if stream.copies else 0)
        self.at = stream.free

    def query(self) -> bool:
        return self.at <= self.fake.now

    def synchronize(self) -> None:
        self.fake.now = max(self.fake.now, self.at)

    def elapsed_time(self, later: Event) -> float:
        assert self.query(), "it has not happened yet"
        assert later.query(), "it has not happened yet"
        return (later.at - self.at) / MS


class FakeCuda:
    """Real tensors in main memory, and streams in virtual time; capturing remembers what the model did."""

    def __init__(self) -> None:
        self.now = 1000 * MS
        self.capturing: Graph | None = None
        self.streams: list[Stream] = []
        self.thread = local()
        self.default = Stream(self, False)
        self.cuda = SimpleNamespace(
            Stream=self._new_stream,
            Event=lambda enable_timing=False: Event(self),
            stream=self._on,
            device=nullcontext,
            CUDAGraph=lambda: Graph(self),
            graph_pool_handle=lambda: None,
            default_stream=lambda device: self.default,
            empty_cache=lambda: None,
            is_available=lambda: True,
            device_count=lambda: 1,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, name: str) -> Any:
        return torch.device("cpu")

    def zeros(self, shape: Any, pin_memory: bool = False, **options: Any) -> Any:
        return torch.zeros(shape, **options)

    def empty(self, shape: Any, pin_memory: bool = False, **options: Any) -> Any:
        return torch.full(shape, 77, **options)

    @property
    def current(self) -> Stream | None:
        """Return the stream of this thread."""
        return getattr(self.thread, "stream", None)

    def compute(self) -> None:
        """Take the time that a model takes."""
        assert self.current is not None, "models run in a stream"
        self.current.spend(COMPUTING)

    def _new_stream(self, device: Any, priority: int = 0) -> Stream:
        """Return a stream; of the first three, which all models share, the outer ones copy."""
        assert (priority < 0) == (len(self.streams) < 3), "none that models are captured in"
        self.streams.append(Stream(self, len(self.streams) in (0, 2)))
        return self.streams[-1]

    @contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        before = self.current
        self.thread.stream = stream
        yield
        self.thread.stream = before


class Doubles:
    """A model that counts how often Python calls it, and how many rows it then saw."""

    def __init__(self, fake: FakeCuda, fails_at: int = 0) -> None:
        self.fake = fake
        self.fails_at = fails_at
        self.calls = list[int]()
        self.fails = False

    def __call__(self, x: Any) -> Any:
        self.calls.append(len(x))
        if self.fails:
            raise RuntimeError("no such row")
        if self.fake.capturing is not None and len(x) == self.fails_at:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = x * 2 + (x.sum() * 0 if x.abs().sum() >= 0 else 0)
        if self.fake.capturing is not None:
            self.fake.capturing.steps += [lambda: out.copy_(x * 2), self.fake.compute]
        else:
            self.fake.compute()
        return out


Y = TensorSpec("Y", "FP32", (4,))


def of_sizes(sizes: list[int]) -> list[GraphShape]:
    return [GraphShape(size) for size in sizes]


def shapes_of(inputs: tuple[TensorSpec, ...]) -> GraphShapes:
    return GraphShapes(inputs, {} if any(-1 in spec.shape for spec in inputs) else {0: 8})


def runner(fails_at: int = 0, shape: tuple[int, ...] = (4,)) -> tuple[CudaRunner, Doubles]:
    fake = FakeCuda()
    model = Doubles(fake, fails_at)
    program = Program(model, (TensorSpec("x", "FP32", shape),))
    return CudaRunner(fake, program, [Y], "cuda:0", shapes_of(program.inputs)), model


@pytest.fixture(autouse=True)
def host_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's clock is the one of the streams; it stands still where there are none."""
    monkeypatch.setattr(cuda_runner, "monotonic_ns", lambda: 0)


def check(cuda: CudaRunner, size: int) -> None:
    batch = rows(size).inputs["x"]
    assert cuda.run([batch], size)["Y"].tolist() == (batch * 2).tolist()


def test_a_batch_runs_in_the_smallest_graph_that_has_room() -> None:
    cuda, model = runner()
    cuda.capture(of_sizes([2, 8]), "m")
    captured = len(model.calls)
    for size in (1, 2, 3, 8):
        check(cuda, size)
    assert len(model.calls) == captured, "graphs call no Python"


def test_the_rest_of_a_graph_holds_zeros_not_earlier_batches() -> None:
    cuda, _ = runner()
    cuda.capture(of_sizes([8]), "m")
    check(cuda, 8)
    check(cuda, 3)
    (static,) = cuda._static
    assert static.view(8, 4)[3:].abs().sum() == 0
    assert static.view(8, 4)[:3].abs().sum() > 0


def test_larger_batches_run_without_a_graph() -> None:
    cuda, model = runner()
    cuda.capture(of_sizes([1, 2]), "m")
    model.calls.clear()
    check(cuda, 5)
    check(cuda, 9)  # more than there is staging room for
    assert model.calls == [5, 9]


def test_large_graphs_come_first() -> None:
    cuda, model = runner()
    cuda.capture(of_sizes([1, 4, 8, 16]), "m")
    assert list(dict.fromkeys(model.calls)) == [8, 4, 1]


@pytest.mark.parametrize(
    ("sizes", "first", "rest"),
    [
        ([], [], []),
        ([1], [1], []),
        ([1, 8, 32], [32, 8, 1], []),
        ([1, 2, 3, 4, 6, 8], [8, 2, 1], [4, 6, 3]),
        (
            [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64],
            [64, 16, 4, 1],
            [32, 8, 2, 48, 24, 12, 6, 3],
        ),
    ],
)
def test_some_sizes_are_captured_before_a_model_serves(
    sizes: list[int], first: list[int], rest: list[int]
) -> None:
    assert first_sizes(sizes) == (first, rest)
    assert sorted(first + rest) == sizes


def test_graphs_are_added_while_batches_run_in_the_others() -> None:
    """Warming up computes elsewhere: neither with the inputs nor in the stream of captured graphs."""
    cuda, model = runner()
    cuda.capture(of_sizes([1, 8]), "m")
    waiting = launched(cuda, 3, size=8)
    (static,) = cuda._static
    before = static.clone()
    free = model.fake.default.free
    model.calls = []
    assert cuda.capture_more(GraphShape(4), "m")
    assert (static == before).all(), "warming up writes to other inputs"
    assert model.calls == [4] * (cuda_runner._BEFORE_CAPTURE + 1)
    assert model.fake.default.free >= free + cuda_runner._BEFORE_CAPTURE * COMPUTING
    assert (waiting.arrays()["Y"] == 6).all()
    model.calls.clear()
    for size in (1, 3, 4, 5, 8):
        check(cuda, size)
    assert not model.calls, "graphs call no Python"
    assert cuda._graph_shape(GraphShape(3)) == GraphShape(4)


def test_what_cannot_be_captured_later_runs_in_a_larger_graph() -> None:
    cuda, model = runner(fails_at=4)
    cuda.capture(of_sizes([1, 8]), "m")
    with pytest.warns(UserWarning, match="batch of 4 runs in a larger graph, capturing one failed: operat"):
        assert not cuda.capture_more(GraphShape(4), "m")
    model.calls.clear()
    check(cuda, 4)
    assert not model.calls


def test_nothing_is_captured_for_a_model_that_was_closed() -> None:
    cuda, model = runner()
    cuda.capture(of_sizes([1, 8]), "m")
    call = cuda._call
    cuda.close()
    cuda._call = call
    model.calls = []
    assert not cuda.capture_more(GraphShape(4), "m")
    assert not model.calls


def test_where_capturing_fails_it_runs_without_and_says_why() -> None:
    cuda, model = runner(fails_at=4)
    with pytest.warns(
        UserWarning, match="m: runs without CUDA graphs, .*batch of 4 failed: operation not perm"
    ):
        cuda.capture(of_sizes([1, 4, 8]), "m")
    model.calls.clear()
    check(cuda, 8)
    assert model.calls == [8]


def test_open_dimensions_run_without_graphs() -> None:
    cuda, model = runner(shape=(-1,))
    cuda.capture(of_sizes([1, 2, 4]), "m")
    assert model.calls == []
    check(cuda, 2)
    check(cuda, 3)
    assert model.calls == [2, 3]


def test_packed_batches_without_a_range_run_without_graphs_and_bring_all_elements_back() -> None:
    fake = FakeCuda()
    inputs = TensorSpec("X", "FP32", (-1,)), TensorSpec("OFFSETS", "INT64", ())
    packed = marked(inputs, offsets="OFFSETS", pack=True)
    program = Program(lambda x, offsets: {"EACH": x * 2, "LONG": offsets.diff()}, packed)
    outputs = [TensorSpec("EACH", "FP32", (-1,)), TensorSpec("LONG", "INT64", ())]
    shapes = graph_shapes.shapes_of(files(Path(), "net.py:Net", max_batch=8), packed, sizes=[1, 8])
    cuda = CudaRunner(fake, program, outputs, "cuda:0", shapes)
    assert not cuda.capture(shapes.planned([1, 8])[0], "m")
    for lengths in ([1, 4], [9, 3, 2], [1]):
        x = np.arange(sum(lengths), dtype=np.float32)
        offsets = np.cumsum([0, *lengths])
        answer = cuda.run([x, offsets], len(lengths))
        assert answer["EACH"].tolist() == (2 * x).tolist()
        assert answer["LONG"].tolist() == lengths
    assert cuda.beside_graphs == 0


def launched(cuda: CudaRunner, value: float, size: int = 2) -> CudaBatch:
    return cuda.launch([np.full((size, 4), value, np.float32)], size)


def moments(batch: CudaBatch, start: int) -> list[int]:
    """When it had been copied to the GPU, when it was computed, and when it was back, in ms."""
    return [(event.at - start) // MS for event in (batch.copied, batch.computed, batch.done)]


def test_copies_of_other_batches_do_not_stop_the_computing() -> None:
    cuda, model = runner()
    start = model.fake.now = max(stream.free for stream in model.fake.streams) + MS
    first = launched(cuda, 1)
    second = launched(cuda, 2)
    assert [moments(batch, start) for batch in (first, second)] == [[1, 6, 7], [2, 11, 12]]
    first.done.synchronize()
    third = launched(cuda, 3)
    assert moments(third, start) == [8, 16, 17], "its inputs were copied while the second was computed"
    assert_own_answers(first, second, third)


def assert_own_answers(first: Any, second: Any, third: Any) -> None:
    """Slots are two: the third has the memory of the first."""
    assert first.arrays()["Y"].tolist() != second.arrays()["Y"].tolist()
    assert (second.arrays()["Y"] == 4).all()
    assert (third.arrays()["Y"] == 6).all()


def test_a_slot_is_not_used_again_before_its_batch_has_left_it() -> None:
    cuda, _ = runner()
    first = launched(cuda, 1)
    _ = launched(cuda, 2)
    assert not first.done.query()
    (staged,) = cuda.staging(2)
    assert first.done.query(), "nobody waited for it, so this did"
    assert staged is not None
    staged[:] = 3
    batch = cuda.launch([staged], 2)
    assert (batch.arrays()["Y"] == 6).all()


def test_every_model_of_a_gpu_computes_in_the_same_stream() -> None:
    cuda, model = runner()
    other = CudaRunner(model.fake, Program(model, (X,)), [Y], "cuda:0", shapes_of((X,)))
    first = launched(cuda, 1)
    second = launched(other, 2)
    assert second.began.at == first.computed.at


def test_a_batch_that_breaks_while_it_is_launched_leaves_its_slot_to_the_next() -> None:
    cuda, model = runner()
    model.fails = True
    with pytest.raises(RuntimeError, match="no such row"):
        launched(cuda, 1)
    model.fails = False
    assert (launched(cuda, 2).arrays()["Y"] == 4).all()


@pytest.mark.parametrize("late", [0, 3 * MS])
def test_times_are_those_of_the_gpu_even_if_the_host_looks_late(late: int) -> None:
    cuda, model = runner()
    fake = model.fake
    first = launched(cuda, 1)
    first.done.synchronize()
    assert cuda.spans(first, fake.now) == (first.began.at, first.computed.at)
    second = launched(cuda, 2)
    second.done.synchronize()
    began, ended = cuda.spans(second, fake.now + late)
    assert 0 <= began - second.began.at <= 2000
    assert ended - began == COMPUTING


def test_the_time_that_a_batch_takes_is_learnt_by_its_graph() -> None:
    cuda, model = runner()
    cuda.capture(of_sizes([8]), "m")
    assert cuda.expected(GraphShape(3)) == 0
    batch = launched(cuda, 1, size=5)
    batch.done.synchronize()
    cuda.spans(batch, model.fake.now)
    assert cuda.expected(GraphShape(3)) == COMPUTING + COPYING
    assert cuda.expected(GraphShape(9)) == 0


def test_a_model_on_a_gpu_is_launched_ahead_and_tells_the_times_of_the_gpu(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeCuda()
    program = Program(Doubles(fake), (X,))
    monkeypatch.setattr(torch_backend, "package", lambda *names: fake)
    monkeypatch.setattr(torch_backend.programs, "built", lambda *given: None)
    monkeypatch.setattr(torch_backend.programs, "placed", lambda *given: program)
    for module in (torch_backend, cuda_runner):
        monkeypatch.setattr(module, "monotonic_ns", lambda: fake.now)
    outputs = (TensorSpec("Y", "FP32", (4,)),)
    model: Any = backends.get("torch")(files(home, "net.py:Net", outputs=outputs), Place(device="cuda:0"))
    with pytest.warns(UserWarning, match="launched by Python, since this PyTorch does not tell"):
        model.warm_up([1, 8])
    expected: list[int] = []

    def wait_until(instant: int, ready: Any) -> bool:
        expected.append(instant)
        fake.now = instant
        if not ready():
            fake.now += COPYING
        assert ready(), "it was expected when it had been computed"
        return True

    model.wait_until = wait_until
    start = fake.now
    launched = []
    for value in (1, 2):
        (staged,) = model.staging(8).values()
        staged[:] = value
        launched.append(model.launch(Batch(8, {"x": staged}), 0))
    first = launched[0].wait(fake.now)
    second = launched[1].wait(first.ended)
    start += COPYING  # its inputs, before anything was computed
    assert (first.began, first.ended) == (start, start + COMPUTING)
    assert (second.began, second.ended) == (first.ended, first.ended + COMPUTING)
    assert expected == [first.ended, second.ended + COPYING]  # the way back is learnt with the rest
    answers = [ran.result.outputs["Y"] for ran in (first, second)]
    assert [set(answer.ravel().tolist()) for answer in answers] == [{2.0}, {4.0}]
    model.close()


def test_a_partial_model_does_the_rest_later(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    model = Doubles(fake)
    monkeypatch.setattr(torch_backend, "package", lambda *names: fake)
    monkeypatch.setattr(torch_backend.programs, "built", lambda *given: None)
    monkeypatch.setattr(torch_backend.programs, "placed", lambda *given: Program(model, (X,)))
    partial: Any = backends.get("torch")(files(home, "net.py:Net", outputs=(Y,)), Place(device="cuda:0"))
    with pytest.warns(UserWarning, match="launched by Python"):
        partial.warm_up([1, 2, 4, 8])
    assert partial.partial
    assert sorted(partial._runner._graphs) == of_sizes([1, 2, 8])
    model.calls.clear()
    assert list(partial.rest()) == [4, 6, 3]
    assert not partial.partial
    assert list(dict.fromkeys(model.calls)) == [4, 6, 3]
    assert {"imports", "context", "build", "weights", "graphs"} <= partial.phases.keys()


def test_what_was_prepared_is_loaded_once_unless_its_file_has_changed(home: Path) -> None:
    wanted = files(home, "net.py:Net", dtype="bf16")
    torch_backend.TorchModel.prepare(wanted, code=True)
    (prepared,) = [one.built.program for one in programs._prepared if one.files == wanted]
    assert next(prepared.parameters()).dtype == torch.bfloat16
    assert programs.built(torch, wanted).program is prepared
    assert programs.built(torch, wanted).program is not prepared
    torch_backend.TorchModel.prepare(wanted, code=True)
    (home / "net.py").write_text(NET + "\nchanged = True\n")
    old = programs._prepared[-1].built
    assert programs.built(torch, wanted).program is not old.program
    assert all(one.files != wanted for one in programs._prepared)


def test_what_was_prepared_and_is_not_loaded_is_freed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_UNUSED_AFTER", 0.0)
    wanted = plain_files(files(home, "net.py:Net"))
    preparing._prepare_model(preparing.PrepareModel(wanted, code=True))
    preparing.forget_unused(lambda: True)
    assert programs._prepared, "another model is being loaded"
    preparing.forget_unused(lambda: False)
    assert not programs._prepared
    assert not preparing._prepared


def test_weights_are_counted_as_they_are_made(home: Path) -> None:
    assert load(home, "net.py:Net").weights == 4 * (4 * 3 + 3)


def test_a_model_on_the_processor_has_the_host_to_itself(home: Path) -> None:
    model = load(home, "net.py:Net")
    assert not hasattr(model, "launch")
    assert not hasattr(model, "in_flight")
