"""Graphs are tried before anything runs in them; here a graph is what a module did while it was captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astrarium.serving.live.backends.torch.graph_check import first_wrong
from astrarium.serving.live.backends.torch.graph_shapes import GraphShape
from astrarium.serving.live.backends.torch.kept_tensors import tensors_kept
from astrarium.serving.live.tensors import TensorSpec

torch = pytest.importorskip("torch")

EACH = TensorSpec("EACH", "FP32", (-1,))
CLASS = TensorSpec("CLASS", "INT64", ())
SHAPES = [GraphShape(4, 16), GraphShape(4, 8), GraphShape(1, 8)]


def keeping(**attributes: Any) -> Any:
    module = torch.nn.Module()
    module.part = torch.nn.Linear(2, 2)
    for name, value in attributes.items():
        setattr(module.part, name, value)
    return module


TENSOR = torch.ones(3)


@pytest.mark.parametrize(
    "attributes",
    [
        {"table": TENSOR},
        {"tables": {16: [(TENSOR, None)]}},
        {"cache": SimpleNamespace(keys=[TENSOR])},
        {"others": [keeping(table=TENSOR)]},  # modules that no `modules()` finds
    ],
)
def test_tensors_are_found_wherever_a_module_keeps_them(attributes: dict[str, Any]) -> None:
    assert [one is TENSOR for one in tensors_kept(torch, keeping(**attributes))] == [True]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_buffers_are_kept_and_weights_are_not_counted() -> None:
    module = torch.nn.BatchNorm1d(2)
    assert {id(one) for one in tensors_kept(torch, module)} == set(map(id, module.buffers()))
    scripted = torch.jit.script(module)
    assert len(tensors_kept(torch, scripted)) == 3
    assert tensors_kept(torch, None) == []


def test_what_refers_to_itself_has_an_end() -> None:
    around: list[Any] = [TENSOR]
    around.append(around)
    module = keeping(around=around, library=torch)
    module.part.whole = SimpleNamespace(module=module)
    assert [one is TENSOR for one in tensors_kept(torch, module)] == [True]


class Replaces:
    """A module that replaces its table where the length changes; a graph has the one of its length."""

    def __init__(self) -> None:
        self.length = 0
        self.table: Any = np.zeros(0, np.float32)

    def eager(self, shape: GraphShape) -> dict[str, Any]:
        if shape.length != self.length:
            self.change(shape.length)
        return self.answered(shape, self.table)

    def change(self, length: int) -> None:
        self.length, self.table = length, np.arange(length, dtype=np.float32) / length

    def answered(self, shape: GraphShape, table: Any) -> dict[str, Any]:
        return {"EACH": np.tile(table[: shape.length], (2, 1)) + 1, "CLASS": np.array([1, 2])}

    def captured(self, shape: GraphShape) -> Callable[[], dict[str, Any]]:
        self.eager(shape)
        table = self.table
        return lambda: self.answered(shape, table)


class ChangesInPlace(Replaces):
    """One that writes the table of another length where the last one was."""

    def __init__(self) -> None:
        super().__init__()
        self.table = np.zeros(64, np.float32)

    def change(self, length: int) -> None:
        self.length = length
        self.table[:] = np.arange(64) / length


class Draws(Replaces):
    def __init__(self) -> None:
        super().__init__()
        self.chance = np.random.default_rng(1)

    def answered(self, shape: GraphShape, table: Any) -> dict[str, Any]:
        drawn = self.chance.standard_normal((2, shape.length)).astype(np.float32)
        return {"EACH": drawn, "CLASS": self.chance.integers(1000, size=2)}


def wrong_of(module: Replaces) -> GraphShape | None:
    graphs = {shape: module.captured(shape) for shape in SHAPES}
    return first_wrong(SHAPES, module.eager, lambda shape: graphs[shape](), [EACH, CLASS])


def test_graphs_that_answer_as_the_module_does_are_right() -> None:
    assert wrong_of(Replaces()) is None


def test_a_table_that_is_changed_in_place_is_noticed() -> None:
    assert wrong_of(ChangesInPlace()) == SHAPES[0]


def test_one_length_is_tried_after_another_that_has_no_graph() -> None:
    module = ChangesInPlace()
    graph = module.captured(SHAPES[0])
    assert first_wrong(SHAPES[:1], module.eager, lambda _: graph(), [EACH]) == SHAPES[0]


def test_random_numbers_are_no_error() -> None:
    assert wrong_of(Draws()) is None


@pytest.mark.parametrize(
    ("graph", "right"),
    [
        ({"EACH": np.full((2, 4), 1 + 1e-6, np.float32)}, True),
        ({"EACH": np.full((2, 4), 1.01, np.float32)}, False),
        ({"EACH": np.full((2, 4), np.nan, np.float32)}, False),
        ({"CLASS": np.array([3, 5])}, False),
    ],
)
def test_rounding_is_no_error_and_more_is(graph: Mapping[str, Any], right: bool) -> None:
    answers = {"EACH": np.ones((2, 4), np.float32), "CLASS": np.array([3, 4])}
    shape = GraphShape(2, 4)
    wrong = first_wrong([shape], lambda _: answers, lambda _: {**answers, **graph}, [EACH, CLASS])
    assert wrong == (None if right else shape)


def test_all_eager_runs_come_before_the_graphs() -> None:
    order: list[str] = []

    def noted(kind: str) -> Callable[[GraphShape], dict[str, Any]]:
        return lambda _: order.append(kind) or {}  # type: ignore[func-returns-value]

    first_wrong(SHAPES, noted("eager"), noted("graph"), [])
    assert order == ["eager"] * 4 + ["graph"] * 3
