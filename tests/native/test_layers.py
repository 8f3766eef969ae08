"""The folders of native code stand above each other, and no file leads back to itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

NATIVE = ROOT / "native"
MAY_USE: dict[str, set[str]] = {
    "common": set(),
    "policies": {"common"},
    "simulator": {"policies"},
    "tensors": set(),
    "protocol": {"tensors"},
    "messages": {"tensors"},
    "exchange": {"common", "messages", "policies"},
    "front": {"common", "exchange", "protocol", "tensors"},
    "scheduler": {"common", "exchange", "messages", "policies"},
    "worker": {"common", "messages", "tensors"},
    "placement": set(),
    "testing": {"common", "policies", "simulator", "exchange", "front", "scheduler"},
}
# Folders in folders: what stands beside them is below them, but for what puts all together.
INNER: dict[str, set[str]] = {
    "policies/astrarium": {"policies"},
    "policies/orloj": {"policies"},
    "policies/rivals": {"policies"},
    "tensors/json": {"tensors"},
    "front/calls": {"front"},
    "front/http1": {"front", "front/calls"},
    "front/http2": {"front"},
    "front/grpc": {"front", "front/calls", "front/http2"},
}
TOGETHER = {
    "policies/live_twins.h",
    "policies/twins.h",
    "tensors/bind_tensors.h",
    "front/module.cpp",
}
MOST = 20  # siblings in a folder
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
SOURCES = sorted(
    path
    for kind in ("*.h", "*.cpp")
    for path in NATIVE.rglob(kind)
    if path.relative_to(NATIVE).parts[0] not in {"gate", "fuzz"}
)


def name(path: Path) -> str:
    return str(path.relative_to(NATIVE))


def includes(path: Path) -> set[str]:
    return set(INCLUDE.findall(path.read_text()))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_includes_only_what_its_folder_may_use(path: Path) -> None:
    top = path.relative_to(NATIVE).parts[0]
    used = includes(path)
    assert all((NATIVE / other).is_file() for other in used)
    assert {other.partition("/")[0] for other in used} <= MAY_USE[top] | {top}
    if name(path) in TOGETHER:
        return
    folder = str(path.parent.relative_to(NATIVE))
    beside = {str(Path(other).parent) for other in used if other.startswith(f"{top}/")}
    assert beside <= INNER.get(folder, set()) | {folder}


def test_every_folder_has_its_place() -> None:
    assert {name(path).partition("/")[0] for path in SOURCES} == set(MAY_USE)
    folders = {str(path.parent.relative_to(NATIVE)) for path in SOURCES}
    assert folders == set(MAY_USE) | set(INNER)


def test_no_file_leads_back_to_itself() -> None:
    left = {name(path): includes(path) for path in SOURCES}
    while ground := [path for path, used in left.items() if not used & left.keys()]:
        for path in ground:
            del left[path]
    assert not left


@pytest.mark.parametrize("folder", sorted({path.parent for path in SOURCES}), ids=name)
def test_no_folder_has_too_many_siblings(folder: Path) -> None:
    assert len([path for path in folder.iterdir() if path.name != "__pycache__"]) <= MOST


def test_the_readme_shows_every_folder_and_extension() -> None:
    text = (NATIVE / "README.md").read_text()
    assert all("](" + folder + ")" in text for folder in [*MAY_USE, *INNER, "gate", "fuzz"])
    built = re.findall(r"add_extension\((_\w+)", (NATIVE / "CMakeLists.txt").read_text())
    assert built
    assert all(f"`astrarium.{extension}`" in text for extension in built)
