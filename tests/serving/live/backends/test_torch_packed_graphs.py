"""CUDA graphs of packed batches by their total, without CUDA: nobody hears of the items that fill a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astrarium.serving.live import fills
from astrarium.serving.live.backends import backends, batches
from astrarium.serving.live.backends import torch as torch_backend
from astrarium.serving.live.backends.contract import ModelFiles, Place
from astrarium.serving.live.backends.torch import cuda_runner
from astrarium.serving.live.backends.torch.graph_shapes import GraphShape, GraphShapes, packed_shapes
from astrarium.serving.live.backends.torch.programs import Program
from astrarium.serving.live.messages import LoadModel, plain_files
from astrarium.serving.live.packing import PackedShape, offsets_of, rest_in
from astrarium.serving.live.ranges import Sizes
from astrarium.serving.live.tensors import Array, TensorSpec
from astrarium.serving.live.worker import models
from astrarium.serving.live.worker.inputs import UnequalItems
from astrarium.serving.live.worker.packing import together
from astrarium.serving.live.worker.padding import joined
from astrarium.serving.live.worker.padding_trial import graph_warnings, tried, tried_in_graphs
from astrarium.serving.live.worker.repeated_order import RepeatedOrder
from tests.serving.live.backends.test_torch_cuda_graphs import FakeCuda

torch = pytest.importorskip("torch")

LARGEST = 8
SIZES = [1, 2, 3, 4, 6, 8]
LOW, HIGH = 2, 32
TOKENS = TensorSpec("TOKENS", "FP32", (-1, 2), ranges=((LOW, HIGH), None))
SCALE = TensorSpec("SCALE", "FP32", (), (1, 9))
OFFSETS = TensorSpec("OFFSETS", "INT32", ())
LENGTHS = TensorSpec("LENGTHS", "INT64", (1,))
MEAN = TensorSpec("MEAN", "FP32", (2,))
EACH = TensorSpec("EACH", "FP32", (-1, 2))


@pytest.fixture(autouse=True)
def host_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_runner, "monotonic_ns", lambda: 0)


class Means:
    """A model that answers with the mean of each item, times its scale, and with what is left of each token.

    It notes how many items of which total it is called with, and takes nothing but what clients may send.
    """

    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake
        self.calls = list[tuple[int, int]]()
        self.breaks: Any = lambda: False

    def __call__(self, tokens: Any, scale: Any, offsets: Any, lengths: Any) -> Any:
        self.calls.append((len(lengths), len(tokens)))
        if self.breaks():
            raise RuntimeError("out of memory")
        known = self.known(tokens, offsets)

        def answered() -> dict[str, Any]:
            self.check(tokens, scale, offsets, lengths)
            return self.answer(tokens, scale, known)

        if self.fake.capturing is None:
            self.fake.compute()
            return answered()
        out = {"MEAN": torch.zeros(len(scale), 2), "EACH": torch.zeros_like(tokens)}
        copy = torch.Tensor.copy_
        steps = self.fake.capturing.steps
        steps.append(lambda: [copy(out[name], tensor) for name, tensor in answered().items()])
        return out

    def known(self, tokens: Any, offsets: Any) -> Any:
        """Return the offsets, or what else the model goes by."""
        return offsets

    def answer(self, tokens: Any, scale: Any, offsets: Any) -> dict[str, Any]:
        items = torch.tensor_split(tokens, offsets[1:-1].tolist())
        means = [item.mean(0) for item in items]
        each = torch.cat([item - mean for item, mean in zip(items, means, strict=True)])
        return {"MEAN": torch.stack(means) * scale[:, None], "EACH": each}

    @staticmethod
    def check(tokens: Any, scale: Any, offsets: Any, lengths: Any) -> None:
        assert offsets[0] == 0
        assert offsets[-1] == len(tokens)
        assert offsets.diff().tolist() == lengths[:, 0].tolist()
        assert lengths.min() >= LOW
        assert lengths.max() <= HIGH
        assert len(scale) == len(lengths)
        assert scale.min() >= 1, "nobody's scale is within its values, too"


class Keeping(Means):
    """A model that keeps what it has made of the offsets as long as the shapes are the same."""

    def __init__(self, fake: FakeCuda) -> None:
        super().__init__(fake)
        self.shapes: Any = None

    def known(self, tokens: Any, offsets: Any) -> Any:
        if self.shapes != (tokens.shape, offsets.shape):
            self.shapes, self.kept = (tokens.shape, offsets.shape), offsets.clone()
        return self.kept


class NotesTheEnd(Means):
    """A model whose answers change where the last element of all is 0, as nobody's are."""

    def answer(self, tokens: Any, scale: Any, offsets: Any) -> dict[str, Any]:
        answer = super().answer(tokens, scale, offsets)
        return answer if tokens[-1, -1] else {**answer, "MEAN": answer["MEAN"] + 1}


def load(
    monkeypatch: pytest.MonkeyPatch, home: Path, kind: type[Means] = Means, **options: Any
) -> tuple[Any, Means]:
    fake = FakeCuda()
    model = kind(fake)
    inputs = TOKENS, SCALE, OFFSETS, LENGTHS
    marked = fills.marked(inputs, lengths="LENGTHS", offsets="OFFSETS", pack=True)
    monkeypatch.setattr(torch_backend, "package", lambda *names: fake)
    monkeypatch.setattr(torch_backend.programs, "built", lambda *given: None)
    monkeypatch.setattr(torch_backend.programs, "placed", lambda *given: Program(model, marked))
    monkeypatch.setattr(torch_backend, "_on_device", lambda torch, device, array: torch.from_numpy(array))
    files = model_files(home, {"model": "net.py:Net", **options})
    loaded: Any = backends.get("torch")(files, Place(device="cuda:0"))
    return loaded, model


def model_files(home: Path, settings: dict[str, Any]) -> ModelFiles:
    inputs = TOKENS, SCALE, OFFSETS, LENGTHS
    files = ModelFiles("m", "torch", settings, inputs, (MEAN, EACH), LARGEST, home)
    return replace(files, pack=True, offsets="OFFSETS", lengths="LENGTHS")


def warmed(monkeypatch: pytest.MonkeyPatch, home: Path, **options: Any) -> tuple[Any, Means]:
    loaded, model = load(monkeypatch, home, **options)
    loaded.padding_is(True)
    with pytest.warns(UserWarning, match="launched by Python, since this PyTorch does not tell"):
        loaded.warm_up([1, LARGEST])
    model.calls.clear()
    return loaded, model


def items_of(lengths: Sequence[int]) -> UnequalItems:
    chance = np.random.default_rng(sum(lengths))
    tokens = [chance.standard_normal((length, 2)).astype(np.float32) for length in lengths]
    scale = list(chance.uniform(1, 9, len(lengths)).astype(np.float32))
    return UnequalItems(len(lengths), {"TOKENS": tokens, "SCALE": [np.array(one) for one in scale]})


def check(loaded: Any, lengths: Sequence[int]) -> None:
    """Check the answers to items of these lengths, one by one."""
    items = items_of(lengths)
    parts = replace(together(loaded.inputs, loaded), allowed=True).parts(items)
    outputs = joined(parts, [loaded.run(part.batch) for part in parts]).outputs
    assert {len(answers) for answers in outputs.values()} == {len(lengths)}
    for place, (tokens, scale) in enumerate(zip(items.arrays["TOKENS"], items.arrays["SCALE"], strict=True)):
        assert outputs["MEAN"][place] == pytest.approx(tokens.mean(0) * scale, abs=1e-5)
        assert outputs["EACH"][place] == pytest.approx(tokens - tokens.mean(0), abs=1e-5)


def drawn(count: int) -> list[list[int]]:
    chance = np.random.default_rng(count)
    sizes = chance.integers(1, LARGEST, count, endpoint=True)
    return [chance.integers(LOW, HIGH, size, endpoint=True).tolist() for size in sizes]


@pytest.mark.parametrize("range_", [(1, 512), (2, 32), (16, 400), (1, 2)])
@pytest.mark.parametrize("largest", [1, 8, 64])
def test_a_batch_fits_a_shape_with_items_as_clients_send_them(range_: Sizes, largest: int) -> None:
    low, high = range_
    sizes = [size for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if size <= largest]
    shapes = packed_shapes(range_, {low: largest, high: largest}, sizes)
    rising = sorted(PackedShape(shape.length, shape.size) for shape in shapes)
    chance = np.random.default_rng(largest)
    for size in chance.integers(1, largest, 200, endpoint=True):
        lengths = chance.integers(low, high, size, endpoint=True).tolist()
        rest = rest_in(rising, lengths, range_)
        assert rest is not None
        assert not rest or low <= min(rest) <= max(rest) <= high
        assert PackedShape(sum(lengths) + sum(rest), len(lengths) + len(rest)) in rising
    assert rest_in(rising, [high] * largest, range_) is not None, "the largest batch has a graph"
    assert rest_in(rising, [high] * (2 * largest + 2), range_) is None


def test_a_total_that_a_graph_is_for_runs_with_next_to_nothing_behind_it() -> None:
    shapes = packed_shapes((1, 512), {16: 64, 512: 64}, [1, 8, 64])
    rising = sorted(PackedShape(shape.length, shape.size) for shape in shapes)
    assert rest_in(rising, [512], (1, 512)) == [1]
    assert rest_in(rising, [16], (1, 512)) == [1]
    assert rest_in(rising, [12], (1, 512)) == [5]
    assert rest_in(rising, [128] * 8, (1, 512)) == [1]


def test_where_all_items_are_about_as_long_no_graph_is_mostly_for_nobody() -> None:
    assert packed_shapes((16, 16), {16: 8}, SIZES) == (GraphShape(2, 32, packed=True),)
    for shape in packed_shapes((100, 128), {128: 64}, [1, 8, 64, 400]):
        assert shape.length <= 2 * 64 * 128


def test_graphs_are_for_as_much_as_a_profile_has_batches() -> None:
    shapes = packed_shapes((1, 512), {16: 64, 128: 8, 512: 1}, [1, 2, 4, 8, 16, 32, 64])
    assert max(shape.length for shape in shapes) == 1024 + 1
    assert max(shape.size for shape in shapes) == 64 + 1


def test_some_sizes_of_every_total_are_captured_first_and_large_ones_before_small_ones() -> None:
    shapes = packed_shapes((1, 64), {16: 8, 64: 2}, SIZES)
    first, later = GraphShapes((), {}, shapes).planned(SIZES)
    assert {*first, *later} == {*shapes}
    assert len(first) + len(later) == len(shapes)
    assert [shape.length for shape in first] == sorted((shape.length for shape in first), reverse=True)
    assert {shape.length for shape in first} == {shape.length for shape in shapes}
    assert later


def test_packed_batches_run_in_graphs_and_are_answered_as_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = warmed(monkeypatch, tmp_path)
    for lengths in drawn(50):
        check(loaded, lengths)
    assert model.calls == [], "graphs call no Python"
    assert loaded.beside_graphs == 0
    assert f"up to {max(loaded.packed_shapes).total} in all" in loaded.notes[-1]
    assert LARGEST * HIGH < max(loaded.packed_shapes).total < LARGEST * (HIGH + LOW)


def test_the_rest_is_captured_later_and_then_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, model = warmed(monkeypatch, tmp_path)
    before = list(loaded.packed_shapes)
    assert loaded.partial
    static = [one.clone() for one in loaded._runner._static]
    captured = len(list(loaded.rest()))
    assert all(torch.equal(*pair) for pair in zip(static, loaded._runner._static, strict=True))
    assert len(loaded.packed_shapes) == len(before) + captured == len(loaded._runner._graphs)
    assert list(loaded.packed_shapes) == sorted(loaded.packed_shapes)
    model.calls.clear()
    for lengths in drawn(50):
        check(loaded, lengths)
    assert model.calls == []


def test_batches_that_fit_no_graph_run_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, model = warmed(monkeypatch, tmp_path, graphs=[1, 2])
    lengths = [20] * 5
    check(loaded, lengths)
    assert model.calls == [(5, 100)]
    assert loaded.beside_graphs == 1
    check(loaded, [3, 9])
    assert model.calls == [(5, 100)]


def test_a_batch_is_run_as_it_is_where_nobody_has_given_it_a_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = warmed(monkeypatch, tmp_path)
    batch = batches.packed(loaded.inputs, items_of([3, 4, 5]).arrays)
    answer = loaded.run(batch).outputs
    assert [len(item) for item in answer["EACH"]] == [3, 4, 5]
    assert model.calls == [(3, 12)]


def test_what_a_graph_has_from_the_last_batch_is_in_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, _ = warmed(monkeypatch, tmp_path)
    check(loaded, [HIGH] * LARGEST)
    check(loaded, [3])
    shape = GraphShape(2, 3 + LOW, packed=True)
    tokens, scale, offsets, lengths = loaded._runner._views(shape)
    assert tokens[3:].abs().sum() == 0
    assert scale[1:].tolist() == [1] * (shape.size - 1)
    assert offsets.tolist() == [0, 3, shape.length]
    assert lengths.tolist() == [[3], [shape.length - 3]]


def test_inputs_of_unlike_lengths_run_alone_and_in_no_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, _ = warmed(monkeypatch, tmp_path)
    empty = UnequalItems(2, {"TOKENS": [np.ones((0, 2), np.float32), np.ones((4, 2), np.float32)],
                             "SCALE": [np.array(1, np.float32)] * 2})  # fmt: skip
    parts = replace(together(loaded.inputs, loaded), allowed=True).parts(empty)
    assert [(list(part.places), bool(part.batch.rest)) for part in parts] == [([0], False), ([1], True)]


def test_a_model_that_mixes_up_its_items_has_no_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = load(monkeypatch, tmp_path)
    loaded.padding_is(False)
    loaded.warm_up([1, LARGEST])
    model.calls.clear()
    assert (loaded.packed_shapes, loaded.partial, loaded._runner._graphs) == ((), False, {})
    check(loaded, [3, 4])
    assert model.calls == [(2, 7)]
    assert loaded.beside_graphs == 0


def verdicts(loaded: Any) -> tuple[Any, Any]:
    padding = together(loaded.inputs)
    verdict = tried(loaded, padding, LARGEST, careful=True)
    return verdict, tried_in_graphs(loaded, padding, verdict, LARGEST)


def test_the_trial_also_tries_the_form_that_batches_have_in_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = load(monkeypatch, tmp_path)
    verdict, in_graphs = verdicts(loaded)
    assert verdict.padding == in_graphs.padding == "safe"
    assert graph_warnings(verdict, in_graphs) == []
    shapes = {(shape.size, shape.length) for shape in loaded._runner.shapes.packed}
    assert shapes & {*model.calls}


def test_a_model_whose_answers_change_there_runs_without_graphs_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, _ = load(monkeypatch, tmp_path, NotesTheEnd)
    verdict, in_graphs = verdicts(loaded)
    assert (verdict.padding, in_graphs.padding) == ("safe", "changes")
    (said,) = graph_warnings(verdict, in_graphs)
    assert (
        "runs without CUDA graphs, in which items that are nobody's are behind a batch: output MEAN" in said
    )
    loaded.padding_is(in_graphs.padding == "safe")
    loaded.warm_up([1, LARGEST])
    check(loaded, [3, 4])


@pytest.mark.parametrize(("kind", "in_graphs"), [(Means, True), (NotesTheEnd, False)])
def test_a_worker_loads_it_with_graphs_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Means], in_graphs: bool
) -> None:
    load(monkeypatch, tmp_path, kind)
    monkeypatch.setattr(models, "measured_lead", lambda *given: (0, 0))
    files = model_files(tmp_path, {"model": "net.py:Net"})
    host: Any = SimpleNamespace(wait_until=lambda instant, ready=None: True)
    worker = models.WorkerModels(Place(device="cuda:0"), lambda: 0, host, None)
    ready = worker._ready_to_run(LoadModel(0, plain_files(files), [1, LARGEST]))
    loaded = models._loaded(0, ready)
    assert loaded.padding == "safe"
    assert bool(ready.model.packed_shapes) == in_graphs  # type: ignore[attr-defined]
    assert any("in which items that are nobody's" in one for one in loaded.warnings) != in_graphs
    (part,) = ready.padding.parts(items_of([3, 4]))
    assert bool(part.batch.rest) == in_graphs


def test_a_model_that_keeps_what_it_knows_of_other_items_runs_without_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, _ = load(monkeypatch, tmp_path, Keeping)
    with pytest.warns(
        UserWarning, match=r"m: runs without CUDA graphs, a batch of \d+ with \d+ elements in all"
    ):
        loaded.warm_up([1, LARGEST])
    assert (loaded.packed_shapes, loaded.partial) == ((), False)


def test_where_capturing_fails_no_batch_is_given_a_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = load(monkeypatch, tmp_path)
    model.breaks = lambda: model.fake.capturing is not None
    with pytest.warns(UserWarning, match="elements in all failed: out of memory"):
        loaded.warm_up([1, LARGEST])
    assert loaded.packed_shapes == ()
    check(loaded, [3, 4])


def test_a_graph_that_cannot_be_captured_later_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = warmed(monkeypatch, tmp_path)
    before = list(loaded.packed_shapes)
    model.breaks = lambda: model.fake.capturing is not None
    with pytest.warns(UserWarning, match="elements in all runs in a larger graph"):
        assert list(loaded.rest()) == []
    assert list(loaded.packed_shapes) == before
    model.breaks = lambda: False
    for lengths in drawn(20):
        check(loaded, lengths)


def test_a_batch_is_measured_in_the_graph_that_it_will_run_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, model = warmed(monkeypatch, tmp_path)
    tokens: Array = np.ones((4, 16, 2), np.float32)
    batch = batches.alike(loaded.inputs, {"TOKENS": tokens, "SCALE": np.ones(4, np.float32)})
    turn = RepeatedOrder(loaded, batch).launched()
    assert turn.parts == 1
    assert model.calls == []
    assert loaded.beside_graphs == 0


def test_batches_beside_graphs_are_expected_by_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are too many totals to know the time of each."""
    loaded, _ = load(monkeypatch, tmp_path)
    loaded.padding_is(False)
    loaded.warm_up([1])
    for lengths in ([3, 4], [5, 6], [7, 8]):
        check(loaded, lengths)
    assert GraphShape(2) in loaded._runner._takes
    assert not any(shape.packed for shape in loaded._runner._takes)


def test_the_rest_has_places_of_its_own_in_what_the_server_fills() -> None:
    inputs = fills.marked((TOKENS, SCALE, OFFSETS, LENGTHS), lengths="LENGTHS", offsets="OFFSETS", pack=True)
    batch = batches.packed(inputs, items_of([3, 5]).arrays, (), [2, 4])
    assert batch.inputs["OFFSETS"].tolist() == offsets_of([3, 5, 2, 4]).tolist()
    assert batch.inputs["LENGTHS"].tolist() == [[3], [5], [2], [4]]
    assert batch.inputs["TOKENS"].shape == (14, 2)
    assert batch.inputs["SCALE"].tolist()[2:] == [1, 1]
    assert (batch.size, list(batch.lengths), list(batch.rest)) == (2, [3, 5], [2, 4])
