"""Model backends are registered by name, and come without their frameworks."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from astrarium.core import registry as core_registry
from astrarium.core.errors import InputError
from astrarium.core.registry import Registry
from astrarium.serving.live.backends import backends


def test_ours_are_found_by_name() -> None:
    assert backends.names() == ["emulated", "onnx", "python", "torch"]
    with pytest.raises(InputError, match="did you mean 'onnx'"):
        backends.get("onx")


def test_looking_them_up_imports_no_framework() -> None:
    code = (
        "import sys; from astrarium.serving.live.backends import backends; backends.get('torch');"
        "print([name for name in ('torch', 'onnxruntime', 'msgspec', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_strangers_come_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def points(group: str) -> list[EntryPoint]:
        assert group == "astrarium.backends"
        return [EntryPoint("theirs", "collections:OrderedDict", group)]

    monkeypatch.setattr(core_registry, "entry_points", points)
    fresh: Registry[Any] = Registry("model backend", backends.package, backends.group)
    assert "theirs" in fresh.names()
    from collections import OrderedDict

    assert fresh.get("theirs") is OrderedDict
