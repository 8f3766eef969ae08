"""The train function that a live scenario names, looked for before anything is imported or started."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from astrarium.core.errors import InputError, one_of

_FORM = "file.py:function or module:function, such as train.py:build"


def train_function(raw: Any, home: Path) -> str:
    """A run is made again from another folder: its file is named in full. Modules stay names."""
    file, colon, function = raw.rpartition(":") if isinstance(raw, str) else ("", "", "")
    if not colon or not file or not function.isidentifier():
        raise InputError("train", raw, _FORM)
    if not file.endswith(".py"):
        return str(raw)
    place = (home / file).resolve()
    if not place.is_file():
        raise InputError("train", raw, f"a file that is there: there is no {place}")
    names = _names(place, raw)
    if function not in names and "*" not in names:
        known = one_of(sorted(names), function) if names else "but there is none"
        raise InputError("train", raw, f"a function of {place.name}: {known}")
    return f"{place}:{function}"


def _names(place: Path, raw: str) -> set[str]:
    """What the file's own lines define; `*` where it takes all of another module."""
    try:
        tree = ast.parse(place.read_text(encoding="utf-8"), str(place))
    except (SyntaxError, ValueError, OSError) as error:
        raise InputError("train", raw, f"a Python file that can be read: {error}") from None
    return {name for line in tree.body for name in _defined(line)}


def _defined(line: ast.stmt) -> Iterator[str]:
    if isinstance(line, ast.FunctionDef | ast.ClassDef):
        yield line.name
    elif isinstance(line, ast.Assign):
        yield from (target.id for target in line.targets if isinstance(target, ast.Name))
    elif isinstance(line, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in line.names)
