"""How a person's build gets into other processes: by its name, or pickled."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from astrarium.core.errors import InputError
from astrarium.core.extras import from_extra

FORM = '"file.py:function" or "module:function"'


def named(text: str) -> Callable[..., Any]:
    """What such a name stands for. A file's folder is searched by its imports, as that of a script is."""
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise InputError("build", text, FORM)
    module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    found = getattr(module, name, None)
    if not callable(found):
        raise InputError("build", text, f"a function {name!r} in {where}")
    return cast("Callable[..., Any]", found)


def _from_file(path: Path) -> Any:
    path = path.absolute()
    if not path.is_file():
        raise InputError("build", str(path), "a Python file that is there")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # what it pickles is found again
    spec.loader.exec_module(module)
    return module


def packed(build: Callable[..., Any] | str) -> bytes:
    """A parcel. A name is checked only where it is opened: only there its imports must be possible."""
    if isinstance(build, str):
        where, _, name = build.rpartition(":")
        whole = f"{Path(where).absolute()}:{name}" if where.endswith(".py") else build
        return pickle.dumps(("named", whole))
    if not callable(build):
        raise InputError("build", build, f"a function of values and workers, or {FORM}")
    return pickle.dumps(("pickled", _pickled(build)))


def _pickled(build: Callable[..., Any]) -> bytes:
    """By value where it is in the script itself: that is not run again elsewhere."""
    if importlib.util.find_spec("cloudpickle") is None and build.__module__ != "__main__":
        return pickle.dumps(build)
    with from_extra("tune"):
        import cloudpickle  # type: ignore[import-untyped]
    try:
        return bytes(cloudpickle.dumps(build))
    except Exception as error:
        told = f"a function that can be pickled with all that it refers to: {error}"
        raise InputError("build", build, told) from error


def opened(parcel: bytes) -> Callable[..., Any]:
    kind, inside = pickle.loads(parcel)
    found: Callable[..., Any] = named(inside) if kind == "named" else pickle.loads(inside)
    return found
