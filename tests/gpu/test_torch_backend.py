"""PyTorch on a real GPU: graphs give the numbers of eager runs, in fewer launches.

PYTHONPATH=src python3 -m pytest -m gpu --confcutdir=tests/gpu -s tests/gpu
"""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.serving.live.backends import backends, contract
from astrarium.serving.live.backends.contract import Batch, ModelFiles, Place
from astrarium.serving.live.layout import aligned
from astrarium.serving.live.tensors import DATATYPES, TensorSpec
from astrarium.serving.live.worker.repeated_order import RepeatedOrder

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

IMAGE = TensorSpec("IMAGE", "FP32", (3, 32, 32))
LOGITS = TensorSpec("LOGITS", "FP32", (10,))
LARGEST = 16

NET = """\
import torch
from torch import nn

class Net(nn.Module):
    # Many small kernels: launching them is most of the work.
    def __init__(self, depth=24):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
            for _ in range(depth)
        )
        self.last = nn.Linear(16, 10)

    def forward(self, image):
        hidden = self.first(image)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.last(hidden.amax((2, 3)))

class Peeks(nn.Module):
    # Looks at a number on the host: that cannot be captured.
    def forward(self, image):
        return image.flatten(1) * (2.0 if image.sum().item() > 0 else 3.0)

class Heavy(nn.Module):
    # Takes many milliseconds, of which the host needs none.
    def forward(self, image):
        product = image.flatten(1).mean(1)[:, None, None] * torch.ones(1, 4096, 4096, device=image.device)
        for _ in range(4):
            product = torch.tanh(product @ product)
        return product[:, 0, :4]

class Noise(nn.Module):
    def forward(self, image):
        return image.flatten(1)[:, :4] + torch.rand(len(image), 4, device=image.device)

class Words(nn.Module):
    def forward(self, tokens):
        return tokens * 2
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def load(home: Path, model: str = "net.py:Net", inputs: Any = (IMAGE,), **options: Any) -> Any:
    files = ModelFiles("net", "torch", {"model": model, **options}, inputs, (), LARGEST, home)
    loaded = backends.get("torch")(files, Place(device="cuda:0"))
    loaded.warm_up([1])
    return loaded


def images(size: int) -> Batch:
    values = np.random.default_rng(size).standard_normal((size, 3, 32, 32)).astype(np.float32)
    return Batch(size, {"IMAGE": values})


def answer(model: Any, batch: Batch) -> Any:
    return model.run(batch).outputs["OUTPUT"].copy()


@pytest.fixture(autouse=True)
def exact() -> Any:
    """Convolutions choose their algorithm by batch size; without TF32 they agree to the last digits."""
    kept = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = kept


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 16])
def test_graphs_give_the_numbers_of_eager_runs(home: Path, size: int) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without CUDA graphs")
        graphs = load(home)
    eager = load(home, graphs=False)
    wanted = answer(eager, images(size))
    assert size == 1 or wanted.std(axis=0).max() > 0.2, "images that the network tells apart"
    for _ in range(2):
        assert answer(graphs, images(size)) == pytest.approx(wanted, abs=1e-3)


def test_a_batch_does_not_see_the_one_before(home: Path) -> None:
    model = load(home)
    first = answer(model, images(3))
    answer(model, images(16))
    assert answer(model, images(3)).tolist() == first.tolist()


def test_the_gpu_agrees_with_the_processor(home: Path) -> None:
    files = ModelFiles("net", "torch", {"model": "net.py:Net"}, (IMAGE,), (), LARGEST, home)
    processor = backends.get("torch")(files, Place())
    assert answer(load(home), images(4)) == pytest.approx(answer(processor, images(4)), abs=1e-3)


def test_batches_beyond_the_largest_graph_run_eagerly(home: Path) -> None:
    model = load(home, graphs=[1, 2])
    eager = load(home, graphs=False)
    for size in (9, LARGEST + 4):
        assert answer(model, images(size)) == pytest.approx(answer(eager, images(size)), abs=1e-3)


@pytest.mark.parametrize(("dtype", "close"), [("fp16", 0.05), ("bf16", 0.3)])
def test_lower_precision_stays_close(home: Path, dtype: str, close: float) -> None:
    outputs = answer(load(home, dtype=dtype), images(8)).astype(np.float32)
    assert outputs == pytest.approx(answer(load(home), images(8)), abs=close)


def test_what_cannot_be_captured_runs_eagerly_with_a_warning(home: Path) -> None:
    with pytest.warns(UserWarning, match="runs without CUDA graphs"):
        model = load(home, "net.py:Peeks")
    batch = Batch(2, {"IMAGE": np.ones((2, 3, 32, 32), np.float32)})
    assert (answer(model, batch) == 2).all()
    assert (answer(model, Batch(2, {"IMAGE": -batch.inputs["IMAGE"]})) == -3).all()


def test_open_dimensions_run_eagerly(home: Path) -> None:
    model = load(home, "net.py:Words", (TensorSpec("tokens", "INT64", (-1,)),))
    for length in (3, 7):
        tokens = np.arange(2 * length).reshape(2, length)
        assert answer(model, Batch(2, {"tokens": tokens})).tolist() == (tokens * 2).tolist()


def test_an_exported_program_moves_to_the_gpu(home: Path) -> None:
    from astrarium.serving.live.backends.references import loaded

    net = loaded("net.py:Net", home, "model")().eval()
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(net, (torch.zeros(2, 3, 32, 32),), dynamic_shapes=shapes)
    torch.export.save(program, str(home / "net.pt2"))
    model = load(home, "net.pt2", inputs=())
    batch = images(5)
    outputs = answer(model, Batch(5, {model.inputs[0].name: batch.inputs["IMAGE"]}))
    assert outputs == pytest.approx(answer(load(home, graphs=False), batch), abs=1e-3)


def test_a_graph_is_launched_where_kernels_were(home: Path) -> None:
    """Launching some eighty kernels one by one cannot be as fast."""
    for size in (1, 4, 16):
        eager, graphs = (launches_of(load(home, graphs=captured), images(size)) for captured in (False, True))
        assert 10 * graphs < eager


def launches_of(model: Any, batch: Batch) -> int:
    model.run(batch)
    with torch.profiler.profile() as profiled:
        model.run(batch)
    return sum(event.count for event in profiled.key_averages() if "Launch" in event.key)


@pytest.mark.parametrize("dtype", [None, "fp16"])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 13, 16])
def test_native_code_runs_graphs_with_the_numbers_of_eager_runs(home: Path, size: int, dtype: Any) -> None:
    options = {"dtype": dtype} if dtype else {}
    model = load(home, **options)
    batch = images(size)
    assert model.graphs is not None, "nothing here needs Python"
    wanted = answer(load(home, graphs=False, **options), batch).astype(np.float32)
    order = RepeatedOrder(model, batch)
    for times in (1, 2, 7):
        assert len(order.carried_out(times)) == times
        assert natively(model, order, size) == pytest.approx(wanted, abs=0.05 if dtype else 1e-3)
    assert answer(model, batch).astype(np.float32) == pytest.approx(wanted, abs=0.05 if dtype else 1e-3)


def natively(model: Any, order: RepeatedOrder, size: int) -> Any:
    """The answers, which lie behind the inputs, aligned."""
    (spec,) = model.outputs
    room = (len(order.memory) - size * aligned(IMAGE.item_bytes or 0)) // size
    rows = [order.memory[len(order.memory) - (size - i) * room :][: spec.item_bytes] for i in range(size)]
    return np.stack([np.frombuffer(row, DATATYPES[spec.datatype]) for row in rows]).astype(np.float32)


def test_declared_types_are_what_graphs_leave(home: Path) -> None:
    options = {"model": "net.py:Net", "dtype": "fp16"}
    files = ModelFiles("net", "torch", options, (IMAGE,), (LOGITS,), LARGEST, home)
    model: Any = backends.get("torch")(files, Place(device="cuda:0"))
    model.warm_up([1])
    assert model.graphs is not None
    logits = model.run(images(3)).outputs["LOGITS"]
    assert logits.dtype == np.float32
    assert logits == pytest.approx(answer(load(home), images(3)), abs=0.05)


def test_random_numbers_are_left_to_python(home: Path) -> None:
    with pytest.warns(UserWarning, match="it draws random numbers"):
        model = load(home, "net.py:Noise")
    assert model.graphs is None
    first = answer(model, images(2))
    second = answer(model, images(2))
    assert (first != second).any()


def wait_for(instant: int, ready: Any = None) -> bool:
    while not ready():
        pass
    return True


def launched(model: Any, size: int) -> tuple[Any, Any]:
    """Launch images from the model's own staging memory; return them too."""
    batch_images = images(size).inputs["IMAGE"]
    staged = model.staging(size)["IMAGE"]
    staged[:] = batch_images
    return batch_images, model.launch(Batch(size, {"IMAGE": staged}), 0)


@pytest.mark.parametrize("options", [{}, {"graphs": False}])
def test_batches_launched_ahead_give_the_numbers_of_eager_runs(home: Path, options: dict[str, Any]) -> None:
    model = load(home, **options)
    eager = load(home, graphs=False)
    model.wait_until = wait_for
    waiting = [launched(model, 3)]
    free = 0
    pairs = []
    for size in (5, 16, 1, 8, 3):
        waiting.append(launched(model, size))
        inputs, batch = waiting.pop(0)
        ran = batch.wait(free)
        assert free <= ran.began <= ran.ended <= time.monotonic_ns()
        free = ran.ended
        pairs.append((inputs, ran.result.outputs["OUTPUT"].copy()))
    for inputs, answered in pairs:
        assert answered == pytest.approx(answer(eager, Batch(len(inputs), {"IMAGE": inputs})), abs=1e-3)


def test_the_host_is_free_while_the_gpu_computes(home: Path) -> None:
    model = load(home, "net.py:Heavy", graphs=[LARGEST])
    model.wait_until = wait_for
    first, second = (launched(model, LARGEST)[1] for _ in range(2))
    assert not first._on_gpu.done.query()
    one = first.wait(0)
    assert not second._on_gpu.done.query()
    other = second.wait(one.ended)
    gap = other.began - one.ended
    took = other.ended - other.began
    assert took > 5_000_000
    assert gap < took // 10, "the GPU went on by itself"


def test_models_are_captured_while_another_computes(home: Path) -> None:
    model = load(home)
    model.wait_until = wait_for
    loaded: list[Any] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without CUDA graphs")
        loading = threading.Thread(target=lambda: loaded.append(load(home)))
        loading.start()
        while loading.is_alive():
            launched(model, 4)[1].wait(0)
        loading.join()
    assert answer(loaded[0], images(4)) == pytest.approx(answer(model, images(4)), abs=1e-3)
    assert loaded[0]._runner._graphs


@pytest.mark.parametrize("size", [3, 5, 13])
def test_the_rest_is_captured_while_batches_run_in_the_first_graphs(home: Path, size: int) -> None:
    model = load(home)
    batch = images(size)
    assert model.partial
    wanted = answer(load(home, graphs=False), batch).astype(np.float32)
    order = RepeatedOrder(model, batch)
    before = set(model._runner._graphs)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*larger graph")
        capturing = threading.Thread(target=lambda: contract.complete(model))
        capturing.start()
        while capturing.is_alive():
            order.carried_out(5)
            assert natively(model, order, size) == pytest.approx(wanted, abs=1e-3)
        capturing.join()
    assert set(model._runner._graphs) > before
    assert not model.partial
    order.carried_out(5)
    assert natively(model, order, size) == pytest.approx(wanted, abs=1e-3)
