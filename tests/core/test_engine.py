"""The engine steps a policy, and its steps survive as a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER
from astrarium.core.registry import Registry
from astrarium.core.trace import Step, read_trace, write_trace


class Counter:
    """A level in miniature: numbers come in, their running sum goes out."""

    def __init__(self) -> None:
        self.sum = 0
        self.said = list[int]()
        self.validated = 0
        self.closed = False

    def apply(self, now: int, event: int) -> None:
        self.sum += event

    def commit(self, now: int, action: int) -> None:
        self.said.append(action)

    def close(self, now: int) -> None:
        self.closed = True

    def validate(self) -> None:
        self.validated += 1


class SaysSum:
    def decide(self, now: int, events: Sequence[int], state: Counter) -> Iterable[int]:
        yield state.sum
        yield len(state.said)  # the first answer has been committed by now


def test_an_engine_applies_all_events_then_commits_each_action_as_it_comes() -> None:
    steps: list[Step] = []
    engine: Engine[Any, Any, Any] = Engine(Counter(), SaysSum(), validate=True, record=steps.append)
    assert engine.step(5, [1, 2, 3]) == [6, 1]
    engine.close(9)
    assert steps == [Step(5, (1, 2, 3), (6, 1))]
    assert engine.state.closed
    assert engine.state.validated == 2


def test_an_engine_validates_only_when_asked() -> None:
    engine: Engine[Any, Any, Any] = Engine(Counter(), SaysSum())
    engine.step(1, [1])
    engine.close(1)
    assert engine.state.validated == 0


def test_a_trace_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    steps = [Step(0, (TimerFired("a"),), (SetTimer(FOREVER, "b"),)), Step(7, (), ())]
    write_trace(tmp_path / "t", steps)
    assert list(read_trace(tmp_path / "t", TimerFired, SetTimer)) == steps


def test_a_broken_trace_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(msgspec.json.encode(Step(0, (), ())) + b"\nnot json\n")
    with pytest.raises(InputError, match=r"t: line 2"):
        list(read_trace(path, TimerFired, SetTimer))


def test_a_broken_entry_point_harms_only_who_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("broken", "no.such.module:Thing", "astrarium.nothing")
    monkeypatch.setattr("astrarium.core.registry.entry_points", lambda group: [point])
    things: Registry[object] = Registry(
        "thing", package="astrarium.serving.policies", group="astrarium.nothing"
    )
    things.register("sound")(thing := object())
    assert things.names() == ["broken", "sound"]
    assert things.get("sound") is thing
    with pytest.raises(InputError, match=r"the entry point no.such.module:Thing of a package fails"):
        things.get("broken")
    with pytest.warns(UserWarning, match="broken"):
        assert dict(things) == {"sound": thing}
