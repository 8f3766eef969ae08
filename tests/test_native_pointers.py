"""Native code names the Python that says what it means: what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

NATIVE = ROOT / "native"
FILES = sorted(path for kind in ("*.h", "*.cpp", "*.c") for path in NATIVE.rglob(kind))
STRINGS = r"""R"\((?s:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'"""
COMMENT = re.compile(rf"{STRINGS}|//(?P<line>[^\n]*)|/\*(?P<block>(?s:.*?))\*/")
POINTER = re.compile(r"(?:(?P<name>[\w.]+) in )?(?P<module>astrarium(?:\.[a-z_]\w*)+)")
FILE_POINTER = re.compile(r"\b\w+(?:/\w+)*\.(?:py|h|c|cpp)\b")
BEGINNINGS = (ROOT, ROOT / "src" / "astrarium", NATIVE, NATIVE / "gate")  # of a pointer to a file
NOT_OURS = {"cuda.h"}


def comments(text: str) -> str:
    """Return what the comments of a file say, without line breaks: a pointer may go on in the next line."""
    blocks = (comment["line"] or comment["block"] or "" for comment in COMMENT.finditer(text))
    lines = (line.strip().removeprefix("*").strip() for block in blocks for line in block.splitlines())
    return " ".join(" ".join(lines).split())


def source(module: str) -> str | None:
    """Return the source of a module, or of a package."""
    place = ROOT / "src" / Path(*module.split("."))
    found = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.exists()]
    return found[0].read_text() if found else None


def defines(text: str, name: str) -> bool:
    """Return whether a module has a name, or one of its classes a method or an attribute of this name."""
    last = re.escape(name.split(".")[-1])
    return (
        re.search(rf"\b(?:class|def) {last}\b|^\s*(?:self\.)?{last}\b.*[=:]", text, re.MULTILINE) is not None
    )


def stale_files(text: str, beside: Path) -> list[str]:
    """Return the files that a text names and that are nowhere; it may name those *beside* it shortly."""
    named = set(FILE_POINTER.findall(text)) - NOT_OURS
    return sorted(
        name for name in named if not any((folder / name).exists() for folder in (*BEGINNINGS, beside))
    )


def stale(text: str) -> list[str]:
    """Return what is named in a text and is not there."""
    found = []
    for pointer in POINTER.finditer(text):
        module = pointer["module"]
        name = pointer["name"]
        if module.startswith("astrarium._"):  # an extension: its stub says what it has
            continue
        if source(module) is None:  # the last word may be a name in a module
            module, _, name = module.rpartition(".")
        inside = source(module)
        if inside is None or (name and _is_name(name) and not defines(inside, name)):
            found.append(pointer[0])
    return found


def _is_name(word: str) -> bool:
    """Return whether a word before `in` is one of code, and not of the sentence."""
    return "_" in word or (not word.islower() and word != "As")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(NATIVE)))
def test_what_native_code_names_is_there(path: Path) -> None:
    text = comments(path.read_text())
    assert stale(text) == []
    assert stale_files(text, path.parent) == []


def test_a_pointer_that_leads_nowhere_is_found() -> None:
    assert stale("Twin of astrarium.serving.policies.nexus and Request in astrarium.serving.contract.") == []
    assert stale("as astrarium.core.quantities.FOREVER") == []
    for wrong in ("astrarium.serving.nowhere.at_all", "Nobody in astrarium.core.quantities"):
        assert stale(f"Twin of {wrong}, of which") == [wrong]


def test_a_file_that_is_nowhere_is_found() -> None:
    text = comments('f("// no.py");  // as in serving/live/fills.py\n/* fills.py says,\n * and units.h */')
    assert text == "as in serving/live/fills.py fills.py says, and units.h"
    assert stale_files(text, NATIVE / "common") == ["fills.py"]
    assert stale_files(text, NATIVE) == ["fills.py", "units.h"]
