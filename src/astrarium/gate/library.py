"""The gate is a library, which is preloaded from a private folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import astrarium
from astrarium.core.errors import AstrariumError, InputError

LIBRARY = "libastrarium_gate.so"
LIBRARY_VARIABLE = "ASTRARIUM_GATE_LIBRARY"
GATE = "libcuda.so.1"
OTHER_NAME = "libcuda.so"
DRIVER_LINK = "libcuda_gate_real.so"


def gate_library(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the built gate, beside the package's compiled modules; the newest of several."""
    configured = environ.get(LIBRARY_VARIABLE)
    if configured:
        if not Path(configured).is_file():
            raise InputError(LIBRARY_VARIABLE, configured, f"the path of {LIBRARY}")
        return Path(configured)
    built = [path for folder in astrarium.__path__ if (path := Path(folder) / LIBRARY).is_file()]
    if not built:
        raise AstrariumError(f"this installation has no gate: {LIBRARY} was not built beside the package")
    return max(built, key=lambda path: path.stat().st_mtime)


def private_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return a folder that only this user can read: in the user's cache, or among temporary files."""
    for folder in _homes(environ):
        if _usable(folder):
            return folder
    tried = ", ".join(map(str, _homes(environ)))
    raise AstrariumError(f"no folder for the gate that is this user's alone: tried {tried}")


def _homes(environ: Mapping[str, str]) -> Iterator[Path]:
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".cache")
    yield Path(cache) / "astrarium" / "gate"
    yield Path(tempfile.gettempdir()) / f"astrarium-gate-{os.getuid()}"


def _usable(folder: Path) -> bool:
    """Tell whether the folder is usable: LD_PRELOAD is split at spaces and colons."""
    if not folder.is_absolute() or re.search(r"[\s:]", str(folder)):
        return False
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o077 and os.access(folder, os.W_OK)


def prepared(library: Path, driver: Path, home: Path) -> Path:
    """Return the path that LD_PRELOAD should name."""
    content = library.read_bytes()
    name = hashlib.sha256(content + b"\0" + os.fsencode(driver)).hexdigest()[:16]
    folder = home / name
    folder.mkdir(mode=0o700, exist_ok=True)
    _appear(folder / DRIVER_LINK, lambda place: place.symlink_to(driver))
    _appear(folder / OTHER_NAME, lambda place: place.symlink_to(GATE))
    _appear(folder / GATE, lambda place: shutil.copyfile(library, place))
    return folder / GATE


def _appear(place: Path, make: Callable[[Path], object]) -> None:
    if os.path.lexists(place):
        return
    with tempfile.TemporaryDirectory(dir=place.parent) as draft:
        drafted = Path(draft) / place.name
        make(drafted)
        os.replace(drafted, place)
