"""The train function that a live scenario names is looked for before anything is imported or started."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from astrarium.core.errors import InputError, one_of

_FORM = "file.py:function or module:function, such as train.py:build"


def train_function(raw: Any, home: Path) -> str:
    """Return the function's name with the full path of its file: a run is made again from another folder.
    Modules stay names."""
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
    node = names.get(function)
    if isinstance(node, ast.FunctionDef) and [argument.arg for argument in node.args.args[:1]] == ["trial"]:
        expected = "a function of values and workers; an objective of Optuna goes through Python"
        raise InputError("train", raw, f"{expected}: astrarium.tuning.optuna.optimize(study, {function})")
    return f"{place}:{function}"


def _names(place: Path, raw: str) -> dict[str, ast.stmt]:
    """Return what the file's own statements define; `*` where it takes all of another module."""
    try:
        tree = ast.parse(place.read_text(encoding="utf-8"), str(place))
    except (SyntaxError, ValueError, OSError) as error:
        raise InputError("train", raw, f"a Python file that can be read: {error}") from None
    return {name: statement for statement in tree.body for name in _defined(statement)}


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
    elif isinstance(statement, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in statement.names)
