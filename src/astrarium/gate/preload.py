"""The private folder from which the gate is preloaded.

The gate is named like the driver and brings the real one along under another name that it finds beside
itself. So both lie in a folder of their own: a copy of the gate as `libcuda.so.1`, and a link to the driver.
The folder is named after its content. Versions lie side by side, and launchers that start together make the
same thing: each file appears whole, or not at all.
"""

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
GATE, OTHER_NAME, DRIVER_LINK = "libcuda.so.1", "libcuda.so", "libcuda_gate_real.so"


def gate_library(environ: Mapping[str, str] = os.environ) -> Path:
    """The gate as it was built: beside the package's compiled modules; the newest where there are several."""
    given = environ.get(LIBRARY_VARIABLE)
    if given:
        if not Path(given).is_file():
            raise InputError(LIBRARY_VARIABLE, given, f"the path of {LIBRARY}")
        return Path(given)
    built = [path for folder in astrarium.__path__ if (path := Path(folder) / LIBRARY).is_file()]
    if not built:
        raise AstrariumError(f"this installation has no gate: {LIBRARY} was not built beside the package")
    return max(built, key=lambda path: path.stat().st_mtime)


def private_home(environ: Mapping[str, str] = os.environ) -> Path:
    """A folder that only this user can read: in the user's cache, or else where temporary files are."""
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
    """LD_PRELOAD is split at spaces and colons, so that they cannot be part of a path in it."""
    if not folder.is_absolute() or re.search(r"[\s:]", str(folder)):
        return False
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o077 and os.access(folder, os.W_OK)


def prepared(library: Path, driver: Path, home: Path) -> Path:
    """What LD_PRELOAD should name."""
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
        made = Path(draft) / place.name
        make(made)
        os.replace(made, place)
