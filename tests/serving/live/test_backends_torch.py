"""PyTorch behind the contract, on the processor; what a GPU does is tested in tests/gpu."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.serving.live.backends import backends, checked_options
from astrarium.serving.live.backends import torch as torch_backend
from astrarium.serving.live.backends.contract import Batch, ModelFailed, ModelFiles, Place
from astrarium.serving.live.backends.torch import cuda_runner, first_sizes, graph_sizes, programs
from astrarium.serving.live.backends.torch.cuda_runner import CudaBatch, CudaRunner
from astrarium.serving.live.backends.torch.programs import Program
from astrarium.serving.live.messages import plain_files
from astrarium.serving.live.tensors import BF16, DATATYPES, TensorSpec, to_bfloat16
from astrarium.serving.live.worker import preparing

torch = pytest.importorskip("torch")

X = TensorSpec("x", "FP32", (4,))

NET = """\
import torch

class Net(torch.nn.Module):
    def __init__(self, width=3):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, width)

    def forward(self, x):
        return torch.relu(self.layer(x))

class Two(torch.nn.Module):
    def forward(self, tokens, scale):
        return {"TAGS": tokens * 2, "MEAN": tokens.float().mean(1) * scale}

def broken():
    raise RuntimeError("no weights")

def not_a_module():
    return 3

class Fails(torch.nn.Module):
    def forward(self, x):
        return x @ x
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def files(home: Path, model: str, inputs: Any = (X,), outputs: Any = (), **options: Any) -> ModelFiles:
    return ModelFiles("m", "torch", {"model": model, **options}, inputs, outputs, 8, home)


def load(home: Path, model: str, inputs: Any = (X,), outputs: Any = (), **options: Any) -> Any:
    return backends.get("torch")(files(home, model, inputs, outputs, **options), Place())


def net(home: Path) -> Any:
    from astrarium.serving.live.backends.references import loaded

    return loaded("net.py:Net", home, "model")().eval()


def rows(size: int) -> Batch:
    return Batch(size, {"x": np.random.default_rng(size).standard_normal((size, 4)).astype(np.float32)})


def export(home: Path, name: str = "net.pt2", **given: Any) -> str:
    shapes = given.pop("shapes", ({0: torch.export.Dim("batch", min=1, max=512)},))
    program = torch.export.export(net(home), (torch.zeros(2, 4),), dynamic_shapes=shapes)
    torch.export.save(program, str(home / name))
    return name


def script(home: Path) -> str:
    torch.jit.save(torch.jit.trace(net(home), torch.zeros(2, 4)), str(home / "net.pt"))
    return "net.pt"


@pytest.mark.parametrize("form", ["net.py:Net", "net.pt2", "net.pt"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_form_gives_the_numbers_of_the_module(home: Path, form: str) -> None:
    if form != "net.py:Net":
        export(home) if form == "net.pt2" else script(home)
    model = load(home, form)
    assert model.inputs == (X,)
    assert model.outputs == (TensorSpec("OUTPUT", "FP32", (3,)),)
    model.warm_up([1, 2])
    for size in (1, 3, 8):
        given = rows(size)
        with torch.no_grad():
            wanted = net(home)(torch.from_numpy(given.inputs["x"])).numpy()
        assert model.run(given).outputs["OUTPUT"] == pytest.approx(wanted, abs=1e-6)
    model.close()


def test_an_exported_program_tells_its_inputs(home: Path) -> None:
    assert load(home, export(home), inputs=()).inputs == (X,)


def test_an_exported_program_needs_an_open_batch(home: Path) -> None:
    with pytest.raises(InputError, match=r"exported with a dynamic first dimension.*x\[2, 4\]"):
        load(home, export(home, shapes=None), inputs=())


def test_keywords_of_an_exported_program_are_kept(home: Path) -> None:
    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, scale: Any) -> Any:
            return x * scale

    batch = torch.export.Dim("batch", min=1, max=64)
    given = {"scale": torch.ones(2, 4)}
    program = torch.export.export(
        Sum(), (torch.ones(2, 4),), kwargs=given, dynamic_shapes={"x": {0: batch}, "scale": {0: batch}}
    )
    torch.export.save(program, str(home / "sum.pt2"))
    model = load(home, "sum.pt2", inputs=())
    arrays = {"x": np.full((3, 4), 2, np.float32), "scale": np.full((3, 4), 5, np.float32)}
    assert (model.run(Batch(3, arrays)).outputs["OUTPUT"] == 10).all()


def test_outputs_are_found_out_by_trying(home: Path) -> None:
    inputs = (TensorSpec("tokens", "INT64", (-1,)), TensorSpec("scale", "FP64", ()))
    model = load(home, "net.py:Two", inputs)
    assert model.outputs == (TensorSpec("TAGS", "INT64", (-1,)), TensorSpec("MEAN", "FP64", ()))
    given = {"tokens": np.array([[1, 2, 0], [3, 4, 5]]), "scale": np.array([1.0, 2.0])}
    found = model.run(Batch(2, given, (), {"tokens": [(2,), (3,)]})).outputs
    assert [item.tolist() for item in found["TAGS"]] == [[2, 4], [6, 8, 10]]
    assert found["MEAN"].tolist() == [1.0, 8.0]


def test_declared_outputs_are_chosen_by_name(home: Path) -> None:
    inputs = (TensorSpec("tokens", "INT64", (2,)), TensorSpec("scale", "FP32", ()))
    model = load(home, "net.py:Two", inputs, (TensorSpec("MEAN", "FP32", ()),))
    given = {"tokens": np.array([[1, 3]]), "scale": np.array([1], np.float32)}
    assert {name: value.tolist() for name, value in model.run(Batch(1, given)).outputs.items()} == {
        "MEAN": [2]
    }


def test_arguments_reach_what_makes_the_module(home: Path) -> None:
    assert load(home, "net.py:Net", arguments={"width": 7}).outputs[0].shape == (7,)


@pytest.mark.parametrize(("dtype", "comes_back", "close"), [("fp16", "FP16", 1e-2), ("bf16", "FP32", 5e-2)])
def test_lower_precision_stays_close(home: Path, dtype: str, comes_back: str, close: float) -> None:
    model = load(home, "net.py:Net", dtype=dtype)
    assert model.outputs[0].datatype == comes_back
    exact = load(home, "net.py:Net").run(rows(5)).outputs["OUTPUT"]
    found = model.run(rows(5)).outputs["OUTPUT"]
    assert found.astype(np.float32) == pytest.approx(exact, abs=close)
    assert not (found == exact).all()


def test_bf16_comes_and_goes_as_its_bits(home: Path) -> None:
    given = TensorSpec("x", BF16, (4,))
    outputs = (TensorSpec("OUTPUT", BF16, (3,)),)
    model = load(home, "net.py:Net", (given,), outputs, dtype="bf16")
    exact = load(home, "net.py:Net").run(rows(5)).outputs["OUTPUT"]
    found = model.run(Batch(5, {"x": to_bfloat16(rows(5).inputs["x"])})).outputs["OUTPUT"]
    assert found.dtype == DATATYPES[BF16]
    assert (found.view(np.uint16).astype(np.uint32) << 16).view(np.float32) == pytest.approx(exact, abs=5e-2)


def test_memory_that_cannot_be_written_is_no_obstacle(home: Path) -> None:
    given = rows(2)
    given.inputs["x"].flags.writeable = False
    load(home, "net.py:Net").run(given)


def test_an_error_names_the_line_of_the_model(home: Path) -> None:
    model = load(home, "net.py:Fails", outputs=(TensorSpec("Y", "FP32", (4,)),))
    with pytest.raises(ModelFailed, match=r"net.py:24: RuntimeError: "):
        model.run(rows(2))


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("net.py:broken", {}, r"net.py:17: RuntimeError: no weights"),
    ("net.py:not_a_module", {}, "an nn.Module, not a int"),
    ("net.py:Net", {"inputs": (TensorSpec("x", "BYTES", (1,)),)}, r"inputs\[0\].datatype"),
    ("net.py:Net", {"inputs": ()}, "inputs: expected a list of the inputs"),
    ("none.pt2", {}, "there is none at"),
    ("bad.pt2", {}, "a file of torch.export.save"),
    ("zip.pt2", {}, "a file of torch.export.save; .*not in a subdirectory"),
    ("bad.pt", {}, "a file of torch.jit.save"),
    ("bad.pt2", {"dtype": "fp16"}, "dtype: expected to be left out for a .pt2"),
    ("net.py:Fails", {}, "outputs: expected a list of the outputs: a trial run"),
]


@pytest.mark.parametrize(("model", "options", "told"), BAD)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_loaded(
    home: Path, model: str, options: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad.pt2", "bad.pt"):
        (home / name).write_text("hello")
    with zipfile.ZipFile(home / "zip.pt2", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(InputError, match=told) as caught:
        load(home, model, **options)
    assert not caplog.records  # what PyTorch has to say is in the error
    assert len(caught.value.expected) < 300


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(home: Path) -> None:
    with pytest.raises(InputError, match="device: expected cpu, or one of the 0 GPUs"):
        backends.get("torch")(files(home, "net.py:Net"), Place(device="cuda:0"))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dtype": "fp8"}, "dtype"),
        ({"graphs": "yes"}, "graphs"),
        ({"graphs": [0]}, "graphs"),
        ({"compile": 1}, "compile"),
        ({"threads": 1.5}, "threads"),
        ({"graph": True}, "graph"),
        ({"model": "none.pt2"}, "model"),
        ({"model": "net.py"}, "model"),
    ],
)
def test_options_are_checked_before_anything_is_loaded(home: Path, options: Any, field: str) -> None:
    given = {"model": "net.py:Net", **options}
    with pytest.raises(InputError) as caught:
        checked_options(ModelFiles("m", "torch", given, (X,), base=home))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("graphs", "largest", "sizes"),
    [
        (True, 1, [1]),
        (True, 8, [1, 2, 3, 4, 6, 8]),
        (True, 10, [1, 2, 3, 4, 6, 8, 10]),
        (False, 8, []),
        ([4, 2], 8, [2, 4]),
    ],
)
def test_which_sizes_become_graphs(graphs: Any, largest: int, sizes: list[int]) -> None:
    assert graph_sizes(ModelFiles("m", "torch", {"graphs": graphs}, max_batch=largest)) == sizes


# The logic around CUDA graphs and streams, without CUDA: a graph is what the model did while it was captured,
# and streams take virtual time.

MS = 1_000_000
COMPUTING = 5 * MS
COPYING = MS


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
        self.current: Stream | None = None
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
        self.current = stream
        yield
        self.current = before


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


def runner(fails_at: int = 0, shape: tuple[int, ...] = (4,)) -> tuple[CudaRunner, Doubles]:
    fake = FakeCuda()
    model = Doubles(fake, fails_at)
    program = Program(model, (TensorSpec("x", "FP32", shape),))
    return CudaRunner(fake, program, [Y], "cuda:0", 8), model


@pytest.fixture(autouse=True)
def host_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's clock is the one of the streams; it stands still where there are none."""
    monkeypatch.setattr(cuda_runner, "monotonic_ns", lambda: 0)


def check(cuda: CudaRunner, size: int) -> None:
    given = rows(size).inputs["x"]
    assert cuda.run([given], size)["Y"].tolist() == (given * 2).tolist()


def test_a_batch_runs_in_the_smallest_graph_that_has_room() -> None:
    cuda, model = runner()
    cuda.capture([2, 8], "m")
    captured = len(model.calls)
    for size in (1, 2, 3, 8):
        check(cuda, size)
    assert len(model.calls) == captured, "graphs call no Python"


def test_the_rest_of_a_graph_holds_zeros_not_earlier_batches() -> None:
    cuda, _ = runner()
    cuda.capture([8], "m")
    check(cuda, 8)
    check(cuda, 3)
    (static,) = cuda._static
    assert static[3:].abs().sum() == 0
    assert static[:3].abs().sum() > 0


def test_larger_batches_run_without_a_graph() -> None:
    cuda, model = runner()
    cuda.capture([1, 2], "m")
    model.calls.clear()
    check(cuda, 5)
    check(cuda, 9)  # more than there is staging room for
    assert model.calls == [5, 9]


def test_large_graphs_come_first() -> None:
    cuda, model = runner()
    cuda.capture([1, 4, 8, 16], "m")
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
    cuda.capture([1, 8], "m")
    waiting = launched(cuda, 3, size=8)
    (static,) = cuda._static
    before = static.clone()
    free = model.fake.default.free
    model.calls = []
    assert cuda.capture_more(4, "m")
    assert (static == before).all(), "warming up writes to other inputs"
    assert model.calls == [4] * (cuda_runner._BEFORE_CAPTURE + 1)
    assert model.fake.default.free >= free + cuda_runner._BEFORE_CAPTURE * COMPUTING
    assert (waiting.arrays()["Y"] == 6).all()
    model.calls.clear()
    for size in (1, 3, 4, 5, 8):
        check(cuda, size)
    assert not model.calls, "graphs call no Python"
    assert cuda._graph_size(3) == 4


def test_what_cannot_be_captured_later_runs_in_a_larger_graph() -> None:
    cuda, model = runner(fails_at=4)
    cuda.capture([1, 8], "m")
    with pytest.warns(UserWarning, match="batches of 4 run in a larger graph, capturing one failed: operat"):
        assert not cuda.capture_more(4, "m")
    model.calls.clear()
    check(cuda, 4)
    assert not model.calls


def test_nothing_is_captured_for_a_model_that_was_closed() -> None:
    cuda, model = runner()
    cuda.capture([1, 8], "m")
    call = cuda._call
    cuda.close()
    cuda._call = call
    model.calls = []
    assert not cuda.capture_more(4, "m")
    assert not model.calls


def test_where_capturing_fails_it_runs_without_and_says_why() -> None:
    cuda, model = runner(fails_at=4)
    with pytest.warns(
        UserWarning, match="m: runs without CUDA graphs, .*batch of 4 failed: operation not perm"
    ):
        cuda.capture([1, 4, 8], "m")
    model.calls.clear()
    check(cuda, 8)
    assert model.calls == [8]


def test_open_dimensions_run_without_graphs() -> None:
    cuda, model = runner(shape=(-1,))
    cuda.capture([1, 2, 4], "m")
    assert model.calls == []
    check(cuda, 2)
    check(cuda, 3)
    assert model.calls == [2, 3]


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
    other = CudaRunner(model.fake, Program(model, (X,)), [Y], "cuda:0", 8)
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
    cuda.capture([8], "m")
    assert cuda.expected(3) == 0
    batch = launched(cuda, 1, size=5)
    batch.done.synchronize()
    cuda.spans(batch, model.fake.now)
    assert cuda.expected(3) == COMPUTING + COPYING
    assert cuda.expected(9) == 0


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
    made: Any = backends.get("torch")(files(home, "net.py:Net", outputs=(Y,)), Place(device="cuda:0"))
    with pytest.warns(UserWarning, match="launched by Python"):
        made.warm_up([1, 2, 4, 8])
    assert made.partial
    assert sorted(made._runner._graphs) == [1, 2, 8]
    model.calls.clear()
    assert list(made.rest()) == [4, 6, 3]
    assert not made.partial
    assert list(dict.fromkeys(model.calls)) == [4, 6, 3]
    assert {"imports", "context", "build", "weights", "graphs"} <= made.phases.keys()


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


# Inputs that index an embedding


INDEXING = """\
import torch
from torch import nn
from torch.nn import functional

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.few, self.places = nn.Embedding(100, 4), nn.Embedding(50, 4), nn.Embedding(512, 4)
        self.kinds, self.bags = nn.Embedding(2, 4), nn.EmbeddingBag(30, 4)

    def forward(self, tokens, kinds, bags, clamped):
        found = self.words(tokens.long()) + self.few(tokens.view(tokens.shape).to(torch.int64)[:, :])
        found = found + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        found = found + functional.embedding(kinds, self.kinds.weight)
        found = found + self.bags(bags).unsqueeze(1) + self.words(clamped.clamp(0, 10))
        return found.sum(1)
"""
INDICES = (
    TensorSpec("TOKENS", "INT32", (-1,)),
    TensorSpec("KINDS", "INT64", (-1,)),
    TensorSpec("BAGS", "INT64", (3,)),
    TensorSpec("CLAMPED", "INT64", (-1,)),
)


@pytest.fixture
def indexing(tmp_path: Path) -> Path:
    (tmp_path / "indexing.py").write_text(INDEXING)
    return tmp_path


def indexing_model(home: Path, inputs: tuple[TensorSpec, ...], model: str = "indexing.py:Net") -> Any:
    files = ModelFiles("m", "torch", {"model": model}, inputs, (), 4, home)
    return backends.get("torch")(files, Place())


@pytest.mark.parametrize("scripted", [False, True])
def test_inputs_that_index_an_embedding_are_limited_to_its_rows(indexing: Path, scripted: bool) -> None:
    if scripted:
        space: dict[str, Any] = {"__name__": "indexing"}
        source = indexing / "indexing.py"
        exec(compile(source.read_text(), str(source), "exec"), space)
        torch.jit.save(torch.jit.trace(space["Net"]().eval(), _indices()), str(indexing / "net.pt"))
    model = indexing_model(indexing, INDICES, "net.pt" if scripted else "indexing.py:Net")
    assert [spec.values for spec in model.inputs] == [(0, 49), (0, 1), (0, 29), None]
    assert model.notes[0] == (
        "input TOKENS takes values from 0 to 49, as an embedding of 50 rows is indexed with it"
    )
    assert (len(model.notes), model.warnings) == (3, ())
    model.warm_up([1, 2])


def _indices() -> tuple[Any, ...]:
    kinds = torch.int32, torch.int64, torch.int64, torch.int64
    return tuple(torch.zeros(2, 3, dtype=kind) for kind in kinds)


def test_what_is_stated_stays_and_is_warned_of_where_it_is_more(indexing: Path) -> None:
    tokens, kinds, *others = INDICES
    stated = replace(tokens, values=(0, 30521)), replace(kinds, values=(1, 1)), *others
    model = indexing_model(indexing, stated)
    assert [spec.values for spec in model.inputs] == [(0, 30521), (1, 1), (0, 29), None]
    (warning,) = model.warnings
    assert warning.startswith("input TOKENS takes values from 0 to 30521: expected no more than 0 to 49")
    assert model.example_inputs[0].values == (0, 49)
    model.warm_up([1, 4])  # what we make up has the rows that are there


def test_an_exported_program_tells_its_embeddings(tmp_path: Path) -> None:
    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(77, 4)

        def forward(self, tokens: Any) -> Any:
            return self.words(tokens).sum(1)

    shapes = ({0: torch.export.Dim("batch", max=64)},)
    example = (torch.zeros(2, 8, dtype=torch.long),)
    torch.export.save(
        torch.export.export(Sum().eval(), example, dynamic_shapes=shapes), str(tmp_path / "net.pt2")
    )
    model = indexing_model(tmp_path, (), "net.pt2")
    assert model.inputs == (TensorSpec("tokens", "INT64", (8,), (0, 76)),)


def test_a_model_without_whole_inputs_is_not_tried(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(*_: Any) -> None:
        raise AssertionError("nobody needs this")

    monkeypatch.setattr(torch_backend.embeddings, "indexed_rows", tried)
    files = ModelFiles("m", "torch", {"model": "net.py:Net"}, (X,), (), 4, home)
    assert backends.get("torch")(files, Place()).inputs == (X,)
