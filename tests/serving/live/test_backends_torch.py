"""PyTorch behind the contract, on the processor; what a GPU does is tested in tests/gpu."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.serving.live.backends import backends, checked_options
from astrarium.serving.live.backends.contract import Batch, ModelFailed, ModelFiles, Place
from astrarium.serving.live.backends.torch import graph_sizes
from astrarium.serving.live.backends.torch.programs import Program
from astrarium.serving.live.backends.torch.runners import CudaRunner
from astrarium.serving.live.tensors import TensorSpec

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
    ("bad.pt2", {"dtype": "fp16"}, "dtype: expected no such option for a .pt2"),
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
        (True, 8, [1, 2, 4, 8]),
        (True, 12, [1, 2, 4, 8, 12]),
        (False, 8, []),
        ([4, 2], 8, [2, 4]),
    ],
)
def test_which_sizes_become_graphs(graphs: Any, largest: int, sizes: list[int]) -> None:
    assert graph_sizes(ModelFiles("m", "torch", {"graphs": graphs}, max_batch=largest)) == sizes


# The logic around CUDA graphs, without CUDA: a graph is what the model did while it was captured.


class Graph:
    def __init__(self) -> None:
        self.steps: list[Any] = []

    def replay(self) -> None:
        for step in self.steps:
            step()


class FakeCuda:
    """Real tensors in main memory; streams do nothing; capturing remembers what the model below did."""

    def __init__(self) -> None:
        self.capturing: Graph | None = None
        self.cuda = SimpleNamespace(
            Stream=lambda device: SimpleNamespace(synchronize=lambda: None),
            stream=lambda stream: nullcontext(),
            CUDAGraph=Graph,
            graph=self._capture,
            graph_pool_handle=lambda: None,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, name: str) -> Any:
        return torch.device("cpu")

    def zeros(self, shape: Any, pin_memory: bool = False, **options: Any) -> Any:
        return torch.zeros(shape, **options)

    def empty(self, shape: Any, pin_memory: bool = False, **options: Any) -> Any:
        return torch.empty(shape, **options)

    @contextmanager
    def _capture(self, graph: Graph, pool: Any, stream: Any) -> Iterator[None]:
        self.capturing = graph
        try:
            yield
        finally:
            self.capturing = None


class Doubles:
    """A model that counts how often Python calls it, and how many rows it then saw."""

    def __init__(self, fake: FakeCuda, fails_at: int = 0) -> None:
        self.fake, self.fails_at, self.calls = fake, fails_at, list[int]()

    def __call__(self, x: Any) -> Any:
        self.calls.append(len(x))
        if self.fake.capturing is not None and len(x) == self.fails_at:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = x * 2 + (x.sum() * 0 if x.abs().sum() >= 0 else 0)
        if self.fake.capturing is not None:
            self.fake.capturing.steps.append(lambda: out.copy_(x * 2))
        return out


def runner(fails_at: int = 0, shape: tuple[int, ...] = (4,)) -> tuple[CudaRunner, Doubles]:
    fake = FakeCuda()
    model = Doubles(fake, fails_at)
    program = Program(model, (TensorSpec("x", "FP32", shape),))
    return CudaRunner(fake, program, ["Y"], "cuda:0", 8), model


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
    room = cuda._inputs[0]
    assert room is not None
    static = room.static
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
