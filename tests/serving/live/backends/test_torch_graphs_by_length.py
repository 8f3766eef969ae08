"""The logic around CUDA graphs of items that have a length, without CUDA."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import numpy as np
import pytest

from astrarium.core.lengths import lengths_between
from astrarium.serving.live import fills
from astrarium.serving.live.backends import backends
from astrarium.serving.live.backends import torch as torch_backend
from astrarium.serving.live.backends.contract import Batch, ModelFiles, Place
from astrarium.serving.live.backends.torch import cuda_runner
from astrarium.serving.live.backends.torch.graph_shapes import (
    GraphShape,
    GraphShapes,
    shapes_of,
)
from astrarium.serving.live.backends.torch.programs import Program
from astrarium.serving.live.tensors import TensorSpec
from tests.serving.live.backends.test_torch_cuda_graphs import FakeCuda

torch = pytest.importorskip("torch")

TOKENS = TensorSpec("TOKENS", "FP32", (-1,), ranges=((1, 64),))
MASK = TensorSpec("MASK", "FP32", (-1,))
LENGTHS = TensorSpec("LENGTHS", "INT64", ())
OUTPUT = TensorSpec("OUTPUT", "FP32", (-1,))


@pytest.fixture(autouse=True)
def host_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_runner, "monotonic_ns", lambda: 0)


class Masked:
    """A model that doubles tokens where the mask is 1; it notes the shapes that Python calls it with."""

    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake
        self.calls = list[tuple[int, ...]]()
        self.breaks: Any = lambda: False

    def __call__(self, tokens: Any, *filled: Any) -> Any:
        self.calls.append(tuple(tokens.shape))
        if self.breaks():
            raise RuntimeError("out of memory")
        for tensor in filled:
            assert len(tensor) == len(tokens)
            assert (tensor > 0).any(), "what is behind a batch is not empty"
        out = tokens * 2 * (filled[0] if filled else 1)
        if self.fake.capturing is not None:
            mask = filled[0] if filled else 1
            self.fake.capturing.steps += [lambda: out.copy_(tokens * 2 * mask), self.fake.compute]
        else:
            self.fake.compute()
        return out


def files(home: Path, inputs: Any, max_batch: int = 8, **options: Any) -> ModelFiles:
    return ModelFiles("m", "torch", {"model": "net.py:Net"}, inputs, (OUTPUT,), max_batch, home, **options)


def load(monkeypatch: pytest.MonkeyPatch, made: ModelFiles) -> tuple[Any, Masked]:
    fake = FakeCuda()
    model = Masked(fake)
    inputs = fills.marked(made.inputs, made.lengths, made.mask)
    monkeypatch.setattr(torch_backend, "package", lambda *names: fake)
    monkeypatch.setattr(torch_backend.programs, "built", lambda *given: None)
    monkeypatch.setattr(torch_backend.programs, "placed", lambda *given: Program(model, inputs))
    monkeypatch.setattr(torch_backend, "_on_device", lambda torch, device, array: torch.from_numpy(array))
    loaded: Any = backends.get("torch")(made, Place(device="cuda:0"))
    return loaded, model


def warmed(monkeypatch: pytest.MonkeyPatch, made: ModelFiles, safe: bool | None = None) -> tuple[Any, Masked]:
    loaded, model = load(monkeypatch, made)
    if safe is not None:
        loaded.padding_is(safe)
    with pytest.warns(UserWarning, match="launched by Python, since this PyTorch does not tell"):
        loaded.warm_up([1, 8])
    model.calls.clear()
    return loaded, model


def check(loaded: Any, size: int, length: int) -> None:
    tokens = np.random.default_rng(size).standard_normal((size, length)).astype(np.float32)
    batch = Batch(size, fills.complete(loaded.inputs, {"TOKENS": tokens}))
    assert loaded.run(batch).outputs["OUTPUT"].tolist() == (tokens * 2).tolist()


def test_buckets_follow_from_a_range_as_profiles_are_measured(tmp_path: Path) -> None:
    shapes = shapes_of(files(tmp_path, (TOKENS,)), (TOKENS,), [1, 8])
    assert list(shapes.largest) == lengths_between(1, 64)
    assert set(shapes.largest.values()) == {8}


def test_some_shapes_of_every_length_are_captured_first_and_large_ones_before_small_ones() -> None:
    shapes = GraphShapes((TOKENS,), {16: 8, 64: 2})
    first, later = shapes.planned([1, 2, 4, 8])
    assert first == [GraphShape(*pair) for pair in ((8, 16), (2, 64), (1, 64), (2, 16), (1, 16))]
    assert later == [GraphShape(4, 16)]


SIZES = [1, 2, 4, 8, 16, 32, 64]


def test_common_lengths_are_captured_first_and_the_largest_of_all_lengths() -> None:
    largest = {16: 64, 128: 64, 512: 64}
    alike, _ = GraphShapes((TOKENS,), largest).planned(SIZES)
    first, later = GraphShapes((TOKENS,), largest, shares={16: 0.99, 128: 0.01}).planned(SIZES)
    assert len(first) == len(alike)
    assert sorted([*first, *later]) == sorted(GraphShape(size, one) for size in SIZES for one in largest)
    assert {shape.length for shape in first if shape.size == 64} == {*largest}
    assert {shape.size for shape in first if shape.length == 16} == {*SIZES}
    assert {shape.size for shape in first if shape.length == 512} == {64}, "it does not come"
    assert first == sorted(first, key=lambda shape: shape.elements, reverse=True)
    assert [shape.length for shape in later] == [128] * 3 + [512] * 6


def test_where_all_lengths_come_as_often_sizes_are_captured_as_if_nobody_knew() -> None:
    largest = {16: 64, 128: 64, 512: 64}
    alike, rest = GraphShapes((TOKENS,), largest).planned(SIZES)
    first, later = GraphShapes((TOKENS,), largest, shares=dict.fromkeys(largest, 0.3)).planned(SIZES)
    assert sorted(first) == sorted(alike)
    assert sorted(later) == sorted(rest)


def test_the_shares_of_lengths_are_those_of_buckets_within_the_range(tmp_path: Path) -> None:
    made = files(tmp_path, (TOKENS,), buckets=(8, 100, 200), bucket_shares=(0.5, 0.3, 0.2))
    assert shapes_of(made, (TOKENS,), [1]).shares == {8: 0.5, 64: 0.3}
    assert shapes_of(files(tmp_path, (TOKENS,), buckets=(8, 100)), (TOKENS,), [1]).shares == {}


def test_the_largest_batch_of_a_length_may_be_given(tmp_path: Path) -> None:
    made = files(tmp_path, (TOKENS,), buckets=(8, 64), bucket_sizes=(6, 2))
    shapes = shapes_of(made, (TOKENS,), [1, 4, 8])
    assert shapes.largest == {8: 6, 64: 2}
    assert shapes.room(TOKENS) == 128
    first, later = shapes.planned([1, 4, 8])
    assert {shape.size for shape in first + later if shape.length == 8} == {1, 4, 6}


@pytest.mark.parametrize(
    ("buckets", "sizes", "largest"),
    [
        ((16, 64, 96, 512), (8, 6, 4, 1), {16: 8, 64: 6, 96: 4, 500: 1}),
        ((4, 16, 500, 512), (), {16: 8, 500: 8}),
        ((512, 1024), (4, 2), {500: 4}),
        ((16, 32), (), {16: 8, 32: 8}),
    ],
)
def test_buckets_are_within_the_range(
    tmp_path: Path, buckets: tuple[int, ...], sizes: tuple[int, ...], largest: dict[int, int]
) -> None:
    inputs = (TensorSpec("TOKENS", "FP32", (-1,), ranges=((10, 500),)),)
    made = files(tmp_path, inputs, buckets=buckets, bucket_sizes=sizes)
    assert shapes_of(made, inputs, [1, 8]).largest == largest


def test_buckets_of_another_range_altogether_are_those_without_a_profile(tmp_path: Path) -> None:
    inputs = (TensorSpec("TOKENS", "FP32", (-1,), ranges=((100, 500),)),)
    made = files(tmp_path, inputs, buckets=(16, 32), bucket_sizes=(4, 2))
    assert list(shapes_of(made, inputs, [1, 8]).largest) == lengths_between(100, 500)


@pytest.mark.parametrize(
    ("mask", "shape"), [((-1,), (16,)), ((1, 1, -1), (1, 1, 16)), ((1, -1, 2), (1, 16, 2))]
)
def test_a_mask_is_as_long_as_the_items_where_it_is_open_itself(
    mask: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    inputs = fills.marked((TOKENS, TensorSpec("MASK", "FP32", mask)), mask="MASK")
    shapes = GraphShapes(inputs, {16: 2})
    assert shapes.item(inputs[1], 16) == shape
    assert shapes.room(inputs[1]) == 2 * np.prod(shape)


@pytest.mark.parametrize(("values", "rest"), [(None, 0), ((1, 100), 1), ((-9, -3), -3)])
@pytest.mark.parametrize("shape", [(4,), (-1,)])
def test_behind_a_batch_is_a_number_that_the_input_takes(
    values: Any, rest: float, shape: tuple[int, ...]
) -> None:
    spec = TensorSpec("TOKENS", "INT64", shape, values)
    assert GraphShapes((spec,), {}).rest(spec, 0) == rest


@pytest.mark.parametrize(
    ("inputs", "sizes"),
    [
        ((TensorSpec("TOKENS", "FP32", (-1,)),), [8]),  # no range
        ((TensorSpec("IMAGE", "FP32", (-1, -1), ranges=((1, 64), (1, 64))),), [8]),  # two axes
        ((TOKENS,), []),
    ],
)
def test_without_one_known_axis_there_are_no_graphs(tmp_path: Path, inputs: Any, sizes: list[int]) -> None:
    assert shapes_of(files(tmp_path, inputs), inputs, sizes).largest == {}


def test_batches_of_a_captured_length_run_in_its_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = warmed(monkeypatch, files(tmp_path, (TOKENS,), buckets=(4, 16)))
    for size, length in ((1, 4), (3, 16), (8, 4), (2, 4), (8, 16), (5, 4)):
        check(loaded, size, length)
    assert model.calls == [], "graphs call no Python"
    assert loaded.beside_graphs == 0
    check(loaded, 3, 5)
    check(loaded, 9, 4)
    assert model.calls == [(3, 5), (9, 4)], "others run kernel by kernel, and are counted"
    assert loaded.beside_graphs == 2
    assert "lengths 4, 16" in loaded.notes[0]


def test_the_rest_is_captured_later_without_touching_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = warmed(monkeypatch, files(tmp_path, (TOKENS,), buckets=(4, 16)))
    check(loaded, 8, 16)
    (static,) = loaded._runner._static
    before = static.clone()
    assert loaded.partial
    captured = len(list(loaded.rest()))
    assert captured == 6  # 3, 4 and 6 for each length
    assert (static == before).all()
    assert loaded._runner._graph_shape(GraphShape(5, 4)) == GraphShape(6, 4)
    assert not loaded.partial
    model.calls.clear()
    check(loaded, 5, 4)
    assert model.calls == []


def test_what_the_server_fills_is_filled_behind_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = files(tmp_path, (TOKENS, MASK, LENGTHS), buckets=(4, 16), mask="MASK", lengths="LENGTHS")
    loaded, model = warmed(monkeypatch, made, safe=True)
    check(loaded, 8, 16)
    check(loaded, 3, 4)
    assert model.calls == []
    tokens, mask, lengths = loaded._runner._static
    room = loaded._runner._graph_shape(GraphShape(3, 4)).size
    assert room > 3
    assert tokens[: room * 4].view(room, 4)[3:].abs().sum() == 0
    assert (mask[: room * 4] == 1).all()
    assert (lengths[:room] == 4).all()


def test_a_model_that_padding_changes_has_graphs_for_the_lengths_of_its_profile_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, _ = warmed(monkeypatch, files(tmp_path, (TOKENS,), buckets=(4, 16)), safe=False)
    assert loaded.buckets == (4, 16)
    derived, model = load(monkeypatch, files(tmp_path, (TOKENS,)))
    assert derived.buckets[-1] == 64
    derived.padding_is(False)
    derived.warm_up([1, 8])
    assert (derived.buckets, derived.graphs, derived.partial) == ((), None, False)
    assert model.fake.capturing is None
    check(derived, 3, 5)


def test_where_capturing_fails_nothing_is_padded_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = load(monkeypatch, files(tmp_path, (TOKENS,), buckets=(4, 16)))
    model.breaks = lambda: model.fake.capturing is not None
    with pytest.warns(UserWarning, match="a batch of 8 of length 16 failed: out of memory"):
        loaded.warm_up([1, 8])
    assert loaded.buckets == ()
    check(loaded, 2, 4)


def test_inputs_of_unlike_lengths_run_without_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = TOKENS, TensorSpec("TYPES", "FP32", (-1,), (1, 2), ranges=((1, 64),))
    loaded, model = warmed(monkeypatch, files(tmp_path, both, buckets=(4, 16)))
    batch = Batch(2, {"TOKENS": np.ones((2, 4), np.float32), "TYPES": np.ones((2, 1), np.float32)})
    loaded.run(batch)
    assert model.calls == [(2, 4)]


def test_each_length_has_its_own_expected_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, _ = warmed(monkeypatch, files(tmp_path, (TOKENS,), buckets=(4, 16)))
    runner = loaded._runner
    runner._takes.clear()
    check(loaded, 8, 16)
    assert runner.expected(GraphShape(8, 16)) > 0
    assert runner.expected(GraphShape(8, 4)) == 0


class Positions(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model that adds a table of positions, which it keeps for one length; maybe in the same memory."""

    def __init__(self, fake: FakeCuda, in_place: bool) -> None:
        super().__init__()
        self.fake = fake
        self.in_place = in_place
        self.length = 0
        self.table = torch.zeros(64)
        self.calls = list[tuple[int, ...]]()
        self.while_called: Any = lambda: None

    def forward(self, tokens: Any) -> Any:
        self.calls.append(tuple(tokens.shape))
        self.while_called()
        if tokens.shape[1] != self.length:
            self.length = tokens.shape[1]
            fresh = torch.arange(64.0) / self.length
            self.table = self.table.copy_(fresh) if self.in_place else fresh
        table = self.table[: self.length]
        out = tokens + table
        self.fake.compute()
        if self.fake.capturing is not None:
            self.fake.capturing.steps += [lambda: out.copy_(tokens + table)]
        return out


def with_positions(
    monkeypatch: pytest.MonkeyPatch, made: ModelFiles, in_place: bool = False
) -> tuple[Any, Positions]:
    loaded, masked = load(monkeypatch, made)
    model = Positions(masked.fake, in_place)
    loaded._runner._call = loaded._runner._module = model
    return loaded, model


def test_a_graph_holds_the_tensors_that_the_module_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, _ = with_positions(monkeypatch, files(tmp_path, (TOKENS,), buckets=(4, 16)))
    with pytest.warns(UserWarning, match="launched by Python"):
        loaded.warm_up([1, 8])
    list(loaded.rest())
    for shape, captured in loaded._runner._graphs.items():
        assert any((one == torch.arange(64.0) / shape.length).all() for one in captured.held)
    tokens = np.ones((3, 4), np.float32)
    answer = loaded.run(Batch(3, {"TOKENS": tokens})).outputs["OUTPUT"]
    assert answer.tolist() == (tokens + np.arange(4) / 4).tolist()


def test_a_model_that_its_graphs_answer_wrong_for_runs_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = with_positions(monkeypatch, files(tmp_path, (TOKENS,), buckets=(4, 16)), in_place=True)
    with pytest.warns(
        UserWarning, match="m: runs without CUDA graphs, a batch of 8 of length 16 is answered otherwise"
    ):
        loaded.warm_up([1, 8])
    assert (loaded.buckets, loaded.graphs, loaded.partial) == ((), None, False)
    model.calls.clear()
    tokens = np.ones((3, 16), np.float32)
    answer = loaded.run(Batch(3, {"TOKENS": tokens})).outputs["OUTPUT"]
    assert answer == pytest.approx(tokens + np.arange(16) / 16)
    assert model.calls == [(3, 16)]


def test_no_two_threads_call_a_module_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, model = with_positions(monkeypatch, files(tmp_path, (TOKENS,), buckets=(4, 16)))
    with pytest.warns(UserWarning, match="launched by Python"):
        loaded.warm_up([1, 8])
    tokens = np.ones((3, 5), np.float32)
    beside = Thread(target=lambda: loaded.run(Batch(3, {"TOKENS": tokens})))

    def meanwhile() -> None:
        model.while_called = lambda: None
        beside.start()
        sleep(0.05)

    model.while_called = meanwhile
    model.calls.clear()
    next(loaded.rest())
    beside.join()
    times = cuda_runner._BEFORE_CAPTURE + 1
    assert model.calls == [model.calls[0]] * times + [(3, 5)], "it waits until the graph is captured"
