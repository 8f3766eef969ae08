"""The stubs of native extensions are what is generated from them, and say what everything does."""

from __future__ import annotations

import ast
import re
from enum import Enum
from importlib import import_module
from inspect import isclass
from types import ModuleType
from typing import Any

import pytest
from native import stubs

from astrarium.core.optional import extension
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(extension("_testing") is None, reason="needs all native extensions")


@pytest.mark.parametrize("name", stubs.EXTENSIONS)
def test_a_stub_is_what_is_generated(name: str) -> None:
    assert meaning(stubs.stub(name)) == meaning(stubs.path(name).read_text()), "make stubs"


def meaning(stub: str) -> list[str]:
    """Return what a stub says in no order: older versions of nanobind have another one."""
    return sorted(map(ast.unparse, ast.parse(stub).body))


@pytest.mark.parametrize("name", stubs.EXTENSIONS)
def test_everything_has_a_docstring(name: str) -> None:
    module = import_module(f"astrarium.{name}")
    assert module.__doc__
    assert [where for where, doc in docstrings(module) if not doc] == []


def docstrings(owner: ModuleType | type, prefix: str = "") -> list[tuple[str, str | None]]:
    """Return what all parts say, members of enums among them; constructors are what their classes say."""
    said: list[tuple[str, str | None]] = []
    for name, member in vars(owner).items():
        if name.startswith("__"):
            continue
        if isclass(member) and issubclass(member, Enum):
            said += [(name, member.__doc__), *((f"{name}.{one.name}", one.__doc__) for one in member)]
        elif isclass(member):
            said += [(name, member.__doc__), *docstrings(member, f"{name}.")]
        elif callable(member) or isinstance(member, property):
            said.append((prefix + name, own_docstring(member)))
    return said


def own_docstring(member: Any) -> str | None:
    """Return a docstring without the signatures that nanobind puts before it."""
    signed: Any = member.fget if isinstance(member, property) else member
    written: list[str | None] = [doc for _, doc, *_ in signed.__nb_signature__]
    return next(filter(None, written), None)


def test_every_extension_has_a_stub() -> None:
    rules = (ROOT / "native" / "CMakeLists.txt").read_text()
    built = re.findall(r"^ *(?:add_extension|nanobind_add_module)\((_\w+)", rules, re.MULTILINE)
    assert set(built) == set(stubs.EXTENSIONS)
