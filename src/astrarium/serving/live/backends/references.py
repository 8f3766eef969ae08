"""References name Python code: `file.py:function` (from a folder) or `package.module:function`."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from astrarium.core.errors import InputError
from astrarium.serving.live.backends.blame import blamed

FORM = "file.py:NAME or package.module:NAME, such as words.py:detect"


def resolved(reference: Any, base: Path, field: str) -> str:
    """Return a reference with an absolute file name, checked as far as possible without running it."""
    place, name = _parts(reference, field)
    if not place.endswith(".py"):
        if not all(part.isidentifier() for part in place.split(".")):
            raise InputError(field, reference, FORM)
        return f"{place}:{name}"
    return f"{existing(place, base, field)}:{name}"


def existing(name: Any, base: Path, field: str) -> Path:
    """Return an absolute path; InputError where there is no such file."""
    if not isinstance(name, str) or not name:
        raise InputError(field, name, "the name of a file")
    path = (base / name).absolute()
    if not path.is_file():
        raise InputError(field, name, f"a file; there is none at {path}")
    return path


def loaded(reference: Any, base: Path, field: str) -> Any:
    """Return what the reference names (a function, a class, any object), by running its code."""
    place, name = _parts(resolved(reference, base, field), field)
    try:
        module = _module_of(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        raise InputError(field, reference, f"Python code that can be loaded; {blamed(error)}") from error
    if not hasattr(module, name):
        raise InputError(field, reference, f"a name that stands in {place}")
    return getattr(module, name)


def import_needed(reference: Any, base: Path, field: str) -> None:
    """Import the packages that a reference's code imports at its top, without running that code."""
    place, _ = _parts(resolved(reference, base, field), field)
    module = None if place.endswith(".py") else importlib.util.find_spec(place)
    path = Path(place if module is None else module.origin or place)
    for name in _imported(path):
        if not _is_neighbour(name, path):
            with suppress(Exception):  # perhaps one that the code can do without
                importlib.import_module(name)


def _imported(path: Path) -> Iterator[str]:
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Import):
            yield from (one.name for one in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            yield statement.module


def _is_neighbour(name: str, path: Path) -> bool:
    """Whether a module lies beside a file: it is users' code as well."""
    first = path.parent / name.split(".")[0]
    return first.is_dir() or first.with_suffix(".py").is_file()


def _parts(reference: Any, field: str) -> tuple[str, str]:
    place, colon, name = reference.rpartition(":") if isinstance(reference, str) else ("", "", "")
    if not colon or not place or not name.isidentifier():
        raise InputError(field, "nothing" if reference is None else reference, FORM)
    return place, name


def _module_of(path: Path) -> ModuleType:
    """Run a file once in every process, and again once it has changed; it may import its neighbours."""
    state = path.stat()
    version = abs(hash((str(path), state.st_mtime_ns, state.st_size)))
    name = f"astrarium_user_{path.stem}_{version:x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
