"""The folders of native/gate stand above each other, and no file leads back to itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.gate.build import GATE, STUB

BOARD = {"policy", "board"}
SHARING = BOARD | {"sharing"}
KERNELS = {"policy", "driver", "kernels"}
MEMBERS = SHARING | KERNELS | {"members"}
ADMISSION = MEMBERS | {"admission"}
MAY_USE = {
    "policy": {"policy"},
    "board": BOARD,
    "sharing": SHARING,
    "driver": {"driver"},
    "kernels": KERNELS,
    "members": MEMBERS,
    "admission": ADMISSION,
    "hooks": ADMISSION | {"hooks"},
    "simulation": {"policy", "simulation"},
    "bindings": SHARING | {"simulation", "bindings"},
    "stub": {"stub"},
}
INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.MULTILINE)
SOURCES = sorted(path for kind in ("*.h", "*.c", "*.cpp") for path in GATE.rglob(kind))


def includes(path: Path) -> list[Path]:
    """Return what a file includes: paths from native/gate, but the stub names what lies beside it."""
    names = INCLUDE.findall(path.read_text())
    return [path.parent / name if path.parent == STUB else GATE / name for name in names]


def module(path: Path) -> str:
    """Return the name under which a source and its header are one."""
    return str(path.relative_to(GATE).with_suffix(""))


USED = {
    name: {module(other) for path in SOURCES if module(path) == name for other in includes(path)} - {name}
    for name in map(module, SOURCES)
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(GATE)))
def test_a_file_includes_only_what_its_folder_may_use(path: Path) -> None:
    folder = path.relative_to(GATE).parts[0]
    assert all(other.is_file() for other in includes(path))
    assert {other.relative_to(GATE).parts[0] for other in includes(path)} <= MAY_USE[folder]


def test_every_folder_has_its_place() -> None:
    assert {path.relative_to(GATE).parts[0] for path in SOURCES} == set(MAY_USE)


def test_no_module_leads_back_to_itself() -> None:
    left = dict(USED)
    while ground := [name for name, used in left.items() if not used & left.keys()]:
        for name in ground:
            del left[name]
    assert not left


def test_the_stub_calls_what_its_header_lists_above() -> None:
    sections = re.findall(r"/\* ---- (\w+\.c)(.*?)(?=/\* ---- |\Z)", (STUB / "stub.h").read_text(), re.DOTALL)
    names = {file: set(re.findall(r"\bstub_\w+(?=[;(\[])", text)) for file, text in sections}
    order = list(names)
    assert order[0] == "queues.c"
    for at, file in enumerate(order):
        later = set().union(*(names[other] for other in order[at + 1 :]))
        assert not later & set(re.findall(r"\bstub_\w+", (STUB / file).read_text())), file
