"""A user's build gets into other processes by its name, or pickled."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra
from astrarium.tuning.live.training.forms import takes_workers

FORM = '"file.py:function" or "module:function"'


def named(text: str) -> Callable[..., Any]:
    """Return the function of that name. Imports of a file search its folder, as a script's do."""
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise InputError("objective", text, FORM)
    module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError("objective", text, f"a function {name!r} in {where}")
    return cast("Callable[..., Any]", function)


def _from_file(path: Path) -> Any:
    path = path.absolute()
    if not path.is_file():
        raise InputError("objective", str(path), "a Python file that is there")
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
    """Pack a build into bytes. What a name leads to is checked where it is opened: only there its imports
    must be possible."""
    if isinstance(build, str):
        where, _, name = build.rpartition(":")
        if not where or not name or (where.endswith(".py") and not Path(where).is_file()):
            raise InputError("objective", build, f"{FORM} of a file that is there")
        whole = f"{Path(where).absolute()}:{name}" if where.endswith(".py") else build
        return pickle.dumps(("named", whole))
    if not callable(build):
        raise InputError("objective", build, f"a function of values and workers, or {FORM}")
    takes_workers(build)  # one that cannot be called is refused here
    return pickle.dumps(("pickled", _pickled(build)))


def _pickled(build: Callable[..., Any]) -> bytes:
    """Pickle a build, by value where it is in the script itself: that is not run again elsewhere."""
    if importlib.util.find_spec("cloudpickle") is None and build.__module__ != "__main__":
        return pickle.dumps(build)
    with from_extra("tune"):
        import cloudpickle  # type: ignore[import-untyped]
    try:
        return bytes(cloudpickle.dumps(build))
    except Exception as error:
        expected = f"a function that can be pickled with all that it refers to: {error}"
        raise InputError("objective", build, expected) from error


def opened(packed_build: bytes) -> Callable[..., Any]:
    """Return the build that `packed` has packed."""
    kind, content = pickle.loads(packed_build)
    build: Callable[..., Any] = named(content) if kind == "named" else pickle.loads(content)
    return build
