"""Objectives come as trainings, functions that report, generators, and functions that return a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import astrarium
from astrarium.core.errors import InputError
from astrarium.tuning.live.backend import Checkpoint, Iterated, Work
from astrarium.tuning.live.slots.member import GangMember
from astrarium.tuning.live.slots.messages import Begin, MemberEnded, Message, SlotSetup
from astrarium.tuning.live.training.forms import of_one_gpu, takes_workers, training_of
from astrarium.tuning.live.training.packing import packed
from astrarium.tuning.live.training.workers import ClosableTraining, Workers
from astrarium.tuning.runtime import Place

calls: list[Any] = []
told: list[Message] = []


class Own:
    """All that a training can have; of values alone."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.x = values["x"]

    def step(self) -> float:
        self.x += 1.0
        return float(self.x)

    def save(self) -> float:
        return float(self.x)

    def load(self, state: float) -> None:
        self.x = state


class StepsOnly:
    def __init__(self, values: dict[str, Any]) -> None:
        self.x = values["x"]

    def step(self) -> float:
        calls.append("step")
        self.x += 1.0
        return float(self.x)


def both(values: dict[str, Any], workers: Workers) -> Own:
    assert workers.size == 1
    return Own(values)


def makes(values: dict[str, Any]) -> Own:
    return Own(values)


def returns(values: dict[str, Any]) -> float:
    calls.append("returns")
    return float(values["x"] + 1.0)


def reports(values: dict[str, Any]) -> None:
    x = astrarium.resumed() or values["x"]
    while True:
        x += 1.0
        astrarium.report(x, x)


def reports_without_state(values: dict[str, Any]) -> None:
    calls.append("begins")
    for at in range(100):
        astrarium.report(values["x"] + at + 1.0)


def yields(values: dict[str, Any]) -> Iterator[float]:
    for at in range(100):
        yield values["x"] + at + 1.0


def yields_pairs(values: dict[str, Any]) -> Iterator[tuple[float, float]]:
    x = astrarium.resumed() or values["x"]
    while True:
        x += 1.0
        yield x, x


GOING_ON = [Own, both, makes, reports, reports_without_state, yields, yields_pairs, StepsOnly]


def trained(
    folder: Path, objective: Callable[..., Any], total: int, start: int = 0, **setup: Any
) -> tuple[list[float], MemberEnded]:
    """Train a candidate here to so many iterations in all; return the values that it has reported."""
    told.clear()
    work = Work(0, 0, 0, {"x": 1.0}, Place((0,)), total, Checkpoint(0, start) if start else None)
    member = GangMember(Begin(work, str(folder), 1000.0), SlotSetup(goal="max", **setup), told.append)
    ended = member.train(lambda: objective)
    return [message.value or 0.0 for message in told if isinstance(message, Iterated)], ended


@pytest.mark.parametrize("objective", GOING_ON)
def test_it_goes_on_elsewhere_as_if_it_had_stayed(tmp_path: Path, objective: Callable[..., Any]) -> None:
    values, ended = trained(tmp_path, objective, 3)
    assert (values, ended.ending) == ([2.0, 3.0, 4.0], "finished")
    values, ended = trained(tmp_path, objective, 5, start=3)
    assert (values, ended.ending) == ([5.0, 6.0], "finished")


def test_a_function_that_returns_a_number_is_run_once(tmp_path: Path) -> None:
    calls.clear()
    assert trained(tmp_path, returns, 3)[0] == [2.0, 2.0, 2.0]
    assert trained(tmp_path, returns, 9, start=3)[0] == [2.0] * 6
    assert calls == ["returns"]


def test_what_ends_early_keeps_its_last_value(tmp_path: Path) -> None:
    def short(values: dict[str, Any]) -> Iterator[float]:
        yield 1.0
        yield 2.0

    assert trained(tmp_path, short, 4)[0] == [1.0, 2.0, 2.0, 2.0]
    assert trained(tmp_path, short, 5, start=4)[0] == [2.0]


def test_one_without_any_value_fails_and_says_what_would_do(tmp_path: Path) -> None:
    _, ended = trained(tmp_path, lambda values: None, 3)
    assert ended.ending == "failed"
    assert "report(value)" in ended.error
    _, ended = trained(tmp_path, lambda values, workers: 3, 3)
    assert "a training, which has step, save, load; int has no step" in ended.error


def test_several_numbers_can_be_reported(tmp_path: Path) -> None:
    def both_numbers(values: dict[str, Any]) -> Iterator[dict[str, float]]:
        yield {"loss": 0.5, "accuracy": 0.8}

    assert trained(tmp_path, both_numbers, 1, metric="accuracy")[0] == [0.8]
    [report] = [message for message in told if isinstance(message, Iterated)]
    assert report.metrics == {"loss": 0.5}
    _, ended = trained(tmp_path, both_numbers, 1)
    assert "metric: expected the name of what is reported: loss or accuracy" in ended.error
    assert trained(tmp_path, lambda values: {"loss": 0.25}, 1)[0] == [0.25]


def test_a_state_is_that_of_its_report(tmp_path: Path) -> None:
    """A function may go on to change what it has handed over."""

    def changes(values: dict[str, Any]) -> None:
        state = astrarium.resumed() or {"x": 0}
        while True:
            state["x"] += 1
            astrarium.report(float(state["x"]), state if state["x"] % 3 == 0 else None)

    assert trained(tmp_path, changes, 4)[0] == [1.0, 2.0, 3.0, 4.0]
    assert trained(tmp_path, changes, 6, start=4)[0] == [5.0, 6.0]


def test_a_yield_of_more_than_a_pair_is_an_error(tmp_path: Path) -> None:
    def three(values: dict[str, Any]) -> Iterator[Any]:
        yield 1.0, None, 3

    _, ended = trained(tmp_path, three, 2)
    assert "a pair of a value and a state" in ended.error


@pytest.mark.parametrize("objective", [makes, reports_without_state])
def test_what_is_saved_before_the_first_step_is_what_was_loaded(objective: Callable[..., Any]) -> None:
    first = training_of(objective, {"x": 1.0}, Workers())
    values = [first.step(), first.step()]
    second = training_of(objective, {"x": 1.0}, Workers())
    second.load(first.save())
    third = training_of(objective, {"x": 1.0}, Workers())
    third.load(second.save())
    assert [*values, third.step()] == [2.0, 3.0, 4.0]
    for training in (first, second, third):
        assert isinstance(training, ClosableTraining)
        training.close()


@pytest.mark.parametrize("form", ["class", "function"])
def test_whoever_makes_a_training_has_it_closed(tmp_path: Path, form: str) -> None:
    closed: list[str] = []

    class Closes(StepsOnly):
        def close(self) -> None:
            closed.append(form)

    trained(tmp_path, Closes if form == "class" else lambda values: Closes(values), 2)
    assert closed == [form]


def test_an_error_is_the_candidates_own(tmp_path: Path) -> None:
    def broken(values: dict[str, Any]) -> float:
        raise RuntimeError("no such luck")

    _, ended = trained(tmp_path, broken, 3)
    assert (ended.ending, ended.error) == ("failed", "RuntimeError: no such luck")


def test_a_call_that_cannot_be_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match=r"objective.*a function of \(values, workers\)"):
        packed(lambda: 1.0)
    with pytest.raises(InputError, match="objective"):
        packed(lambda values, workers, more: 1.0)


def test_report_outside_of_a_search_says_where_it_belongs() -> None:
    with pytest.raises(InputError, match=r"a function that astrarium\.tune runs"):
        astrarium.report(1.0)
    assert astrarium.resumed() is None


def test_who_knows_nothing_of_workers_gets_no_second_gpu(tmp_path: Path) -> None:
    assert [takes_workers(one) for one in (both, makes, Own, yields)] == [True, False, False, False]
    assert takes_workers(lambda values, workers=None: 1.0)
    assert not takes_workers(lambda values, rate=0.1: 1.0)
    assert [of_one_gpu(one) for one in (both, makes)] == [False, True]
    file = tmp_path / "train.py"
    file.write_text(
        "def one(values, epochs=3):\n    return 1.0\n"
        "def two(values, workers):\n    return 1.0\n"
        "class Three:\n    def __init__(self, values):\n        pass\n"
    )
    assert [of_one_gpu(f"{file}:{name}") for name in ("one", "two", "Three")] == [True, False, True]
