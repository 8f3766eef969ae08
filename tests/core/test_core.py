"""Errors, the registry, named streams, the engine and traces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.core.engine import Engine
from astrarium.core.errors import AstrariumError, BrokenBooks, InputError, InvalidAction, one_of, read_from
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER
from astrarium.core.registry import Registry
from astrarium.core.streams import stream
from astrarium.core.trace import Step, read_trace, write_trace

# errors


def test_an_input_error_names_place_value_and_remedy() -> None:
    with pytest.raises(InputError) as caught, read_from("other.yaml"), read_from("quick.yaml"):
        raise InputError("rate", "-3/s", "a rate such as 5000/s").at("workload")
    assert str(caught.value) == "quick.yaml: workload.rate: expected a rate such as 5000/s (got '-3/s')"
    with pytest.raises(InputError, match=r"^-o: expected KEY=VALUE"), read_from("quick.yaml"):
        raise InputError("-o", "rate", "KEY=VALUE")


def test_a_long_value_is_shown_in_part() -> None:
    assert len(str(InputError("x", "y" * 5000, "less"))) < 150


def test_every_error_is_one_of_the_family() -> None:
    assert all(issubclass(kind, AstrariumError) for kind in (InputError, InvalidAction, BrokenBooks))


def test_one_of_suggests_the_nearest_name() -> None:
    assert one_of(["deferred", "eager"], "defered") == "one of deferred, eager; did you mean 'deferred'?"
    assert one_of(["deferred", "eager"], "zzz") == "one of deferred, eager"


# the registry


def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> Registry[Any]:
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry("thing", package=name, group="astrarium.nothing")


def test_a_registry_imports_the_files_of_its_package_on_first_use(tmp_path: Path, monkeypatch: Any) -> None:
    registry = own_registry(tmp_path, monkeypatch, "things_found", "loaded = True\n")
    registry.register("here")(print)
    assert registry.names() == ["here"]
    import sys

    assert "things_found.first" in sys.modules
    assert list(registry) == [("here", print)]


def test_an_unknown_name_is_an_input_error_with_a_suggestion(tmp_path: Path, monkeypatch: Any) -> None:
    registry = own_registry(tmp_path, monkeypatch, "things_unknown", "")
    registry.register("deferred")(print)
    with pytest.raises(InputError, match="did you mean 'deferred'"):
        registry.get("differed")


def test_a_name_can_be_taken_only_once(tmp_path: Path, monkeypatch: Any) -> None:
    registry = own_registry(tmp_path, monkeypatch, "things_taken", "")
    registry.register("name")(print)
    registry.register("name")(print)  # the same thing again is no conflict: modules may be loaded twice
    with pytest.raises(InputError, match="not taken"):
        registry.register("name")(len)


def test_entry_points_of_others_are_found(tmp_path: Path, monkeypatch: Any) -> None:
    from astrarium.core import registry as module

    class Point:
        name = "theirs"

        def load(self) -> object:
            return max

    registry = own_registry(tmp_path, monkeypatch, "things_theirs", "")
    monkeypatch.setattr(module, "entry_points", lambda group: [Point()] if group == registry.group else [])
    assert registry.get("theirs") is max


# named streams


def test_a_stream_depends_on_seed_and_names_only() -> None:
    draw = stream(1, "arrivals", "resnet50").integers(1 << 60, size=4).tolist()
    assert draw == stream(1, "arrivals", "resnet50").integers(1 << 60, size=4).tolist()
    others = [stream(2, "arrivals", "resnet50"), stream(1, "arrivals", "vgg"), stream(1, "work", "resnet50")]
    assert all(draw != other.integers(1 << 60, size=4).tolist() for other in others)


# the engine and traces


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
