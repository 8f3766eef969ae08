"""This module brings a program under the gate: driver, folder, board and MPS are found or made."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import astrarium
from astrarium.core.errors import AstrariumError, InputError
from astrarium.core.optional import extension
from astrarium.gate import mps
from astrarium.gate.board import Board, BoardView
from astrarium.gate.driver import VISIBLE, GpuInfo, find_driver, probe
from astrarium.gate.mps import PIPE

# The gate is preloaded from a private folder.


LIBRARY = "libastrarium_gate.so"
LIBRARY_VARIABLE = "ASTRARIUM_GATE_LIBRARY"
GATE = "libcuda.so.1"
OTHER_NAME = "libcuda.so"
DRIVER_LINK = "libcuda_gate_real.so"


def gate_library(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the built gate, beside the package's compiled modules; the newest of several."""
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
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o077 and os.access(folder, os.W_OK)


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
        made = Path(draft) / place.name
        make(made)
        os.replace(made, place)


# A program comes under the gate by its environment.


PREFIX = "ASTRARIUM_GATE_"
# These variables are meant for a program around this one, and not passed on.
_TOLD = {f"{PREFIX}{name}" for name in ("BOARD", "CLASS", "NAME", "POLICY", "PROFILE", "RECORD", "COVERAGE")}
# Streams share hardware queues beyond 8 by default, and then wait for each other. Under MPS all clients draw
# on the same queues: with 32 each, the fourth on an H200 found none left ("out of memory").
_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


@dataclass(frozen=True)
class Client:
    """A client is a program under the gate, and these fields are what the gate is told of it."""

    name: str
    gpu: str
    kind: str | None = None  # latency or best-effort; none: all that it launches passes
    board: Path | None = None  # none: the client is alone
    policy: str | None = None  # of a board that this client makes
    profile: Path | None = None
    record: Path | None = None
    coverage: bool = False


def client_environment(base: Mapping[str, str], gate: Path, client: Client) -> dict[str, str]:
    rest = {name: value for name, value in base.items() if name not in _TOLD}
    return {
        **({} if PIPE in base else _QUEUES),
        **rest,
        VISIBLE: client.gpu,
        "LD_PRELOAD": _preloads(gate, base.get("LD_PRELOAD", "")),
        "LD_LIBRARY_PATH": _searched(gate, base.get("LD_LIBRARY_PATH", "")),
        **_told(client),
    }


def _told(client: Client) -> dict[str, str]:
    paths = {"BOARD": client.board, "PROFILE": client.profile, "RECORD": client.record}
    told = {"CLASS": client.kind, "NAME": client.name, "POLICY": client.policy}
    told |= {name: str(path.absolute()) for name, path in paths.items() if path is not None}
    told |= {"COVERAGE": "1"} if client.coverage else {}
    return {f"{PREFIX}{name}": value for name, value in told.items() if value}


def _searched(gate: Path, others: str) -> str:
    """Return the library path, so that programs that ask for libcuda.so find the gate too."""
    home = gate.parent.parent
    kept = [path for path in others.split(":") if path and Path(path).parent != home]
    return ":".join([str(gate.parent), *kept])


def _preloads(gate: Path, others: str) -> str:
    """Return the preloads, the gate first. An outer program's gate is left out: there can be only one."""
    home = gate.parent.parent
    kept = [
        path
        for path in re.split(r"[\s:]+", others)
        if path and not (Path(path).name == GATE and Path(path).parent.parent == home)
    ]
    return ":".join([str(gate), *kept])


DEFAULT_POLICY = "astrarium"
Carrier = Literal["must", "may", "none"]  # whether MPS is used


@dataclass(frozen=True)
class PreparedLaunch:
    """A prepared launch has the program's environment, and the line that describes it."""

    environment: dict[str, str]
    said: str


def alone(client: Client, environ: Mapping[str, str] = os.environ) -> PreparedLaunch:
    """Prepare a program under the gate without a board: nobody else is looked at, and nothing is held."""
    driver = find_driver(environ)
    gpu = probe(driver, client.gpu, environ)
    gate = prepared(gate_library(environ), driver, private_home(environ))
    return PreparedLaunch(client_environment(environ, gate, client), f"{gpu.name} ({client.gpu})")


def shared(
    client: Client, settings: Mapping[str, float], carrier: Carrier, environ: Mapping[str, str] = os.environ
) -> PreparedLaunch:
    """Prepare a program on the board of its GPU, beside the programs that are there."""
    driver = find_driver(environ)
    gpu = probe(driver, client.gpu, environ)
    home = private_home(environ)
    gate = prepared(gate_library(environ), driver, home)
    found = _carried(carrier, home, environ)
    policy = _prepare_board(client, settings, gpu)
    environment = client_environment({**environ, **found.variables}, gate, client)
    said = f"{client.name} as {client.kind} on {gpu.name} ({client.gpu}), policy {policy}"
    return PreparedLaunch(environment, f"{said}, board {client.board}, {found.said}")


def _carried(carrier: Carrier, home: Path, environ: Mapping[str, str]) -> mps.Mps:
    if carrier == "none":
        return mps.without(home)
    found = mps.start(home, environ)
    if carrier == "must" and not found.running:
        raise InputError("--policy", None, f"one that does without MPS, as there is {found.said}")
    return found


def _prepare_board(client: Client, settings: Mapping[str, float], gpu: GpuInfo) -> str:
    """Make or adjust the board, and return its policy. Without the compiled module the program itself makes
    the board."""
    assert client.board is not None
    if extension("_gate") is None and not settings:
        return client.policy or "of the board"
    board = Board(client.board, client.policy, gpu.sms)
    board.sweep()
    view = board.view()
    wanted = {**settings, "sms": gpu.sms}
    policy = client.policy or (None if view.clients else DEFAULT_POLICY)
    if _differs(view, policy, wanted):
        _check_nobody_else(view, policy, settings)
        board.change(policy, wanted)
    return board.view().policy


def _differs(view: BoardView, policy: str | None, wanted: Mapping[str, float]) -> bool:
    other = any(view.settings[name] != value for name, value in wanted.items())
    return other or policy not in (None, view.policy)


def _check_nobody_else(view: BoardView, policy: str | None, settings: Mapping[str, float]) -> None:
    """Refuse a change while others run: the first program decides, and `astrarium gate policy` changes the
    policy for all, on purpose."""
    if not view.clients:
        return
    names = ", ".join(client.name or str(client.pid) for client in view.clients)
    expected = f"as {names} runs with it; `astrarium gate policy` changes it for all"
    if policy not in (None, view.policy):
        raise InputError("--policy", policy, f"{view.policy}, {expected}")
    for name, value in settings.items():
        if view.settings[name] != value:
            raise InputError("--set", f"{name}={value:g}", f"{name}={view.settings[name]:g}, {expected}")
