"""A program comes under the gate by its environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from astrarium.gate.driver import VISIBLE
from astrarium.gate.library import GATE
from astrarium.gate.mps import PIPE

PREFIX = "ASTRARIUM_GATE_"
# These variables are meant for a program around this one, and not passed on.
_SETTINGS = {
    f"{PREFIX}{name}" for name in ("BOARD", "CLASS", "NAME", "POLICY", "PROFILE", "RECORD", "COVERAGE")
}
# Streams share hardware queues beyond 8 by default, and then wait for each other. Under MPS all clients draw
# on the same queues: with 32 each, the fourth on an H200 found none left ("out of memory").
_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


@dataclass(frozen=True)
class Client:
    """A client is a program under the gate, which gets these fields by environment variables."""

    name: str
    gpu: str
    kind: str | None = None  # latency or best-effort; none: all that it launches passes
    board: Path | None = None  # none: the client is alone
    policy: str | None = None  # of a board that this client makes
    profile: Path | None = None
    record: Path | None = None
    coverage: bool = False


def client_environment(base: Mapping[str, str], gate: Path, client: Client) -> dict[str, str]:
    rest = {name: value for name, value in base.items() if name not in _SETTINGS}
    return {
        **({} if PIPE in base else _QUEUES),
        **rest,
        VISIBLE: client.gpu,
        "LD_PRELOAD": _preloads(gate, base.get("LD_PRELOAD", "")),
        "LD_LIBRARY_PATH": _searched(gate, base.get("LD_LIBRARY_PATH", "")),
        **_settings(client),
    }


def _settings(client: Client) -> dict[str, str]:
    paths = {"BOARD": client.board, "PROFILE": client.profile, "RECORD": client.record}
    values = {"CLASS": client.kind, "NAME": client.name, "POLICY": client.policy}
    values |= {name: str(path.absolute()) for name, path in paths.items() if path is not None}
    values |= {"COVERAGE": "1"} if client.coverage else {}
    return {f"{PREFIX}{name}": value for name, value in values.items() if value}


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
