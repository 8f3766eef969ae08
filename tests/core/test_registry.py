"""Names of ours and of others are found when they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.core.registry import Registry


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
