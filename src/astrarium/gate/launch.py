"""A program is brought under the gate: driver, folder, board and MPS are found or made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from astrarium.core.errors import InputError
from astrarium.core.optional import extension
from astrarium.gate import mps
from astrarium.gate.board import Board, BoardView
from astrarium.gate.client import Client, client_environment
from astrarium.gate.driver import GpuInfo, find_driver, probe
from astrarium.gate.library import gate_library, prepared, private_home

DEFAULT_POLICY = "astrarium"
MpsUse = Literal["must", "may", "none"]  # whether MPS is used


@dataclass(frozen=True)
class PreparedLaunch:
    """Its environment puts a program under the gate; nothing is started yet. People read *description*."""

    environment: dict[str, str]
    description: str


def alone(client: Client, environ: Mapping[str, str] = os.environ) -> PreparedLaunch:
    """Prepare a program under the gate without a board: nobody else is looked at, and nothing is held."""
    driver = find_driver(environ)
    gpu = probe(driver, client.gpu, environ)
    gate = prepared(gate_library(environ), driver, private_home(environ))
    return PreparedLaunch(client_environment(environ, gate, client), f"{gpu.name} ({client.gpu})")


def shared(
    client: Client, settings: Mapping[str, float], use_mps: MpsUse, environ: Mapping[str, str] = os.environ
) -> PreparedLaunch:
    """Prepare a program on the board of its GPU, beside the programs that are there."""
    driver = find_driver(environ)
    gpu = probe(driver, client.gpu, environ)
    home = private_home(environ)
    gate = prepared(gate_library(environ), driver, home)
    mps_state = _mps_state(use_mps, home, environ)
    policy = _prepare_board(client, settings, gpu)
    environment = client_environment({**environ, **mps_state.variables}, gate, client)
    description = f"{client.name} as {client.kind} on {gpu.name} ({client.gpu}), policy {policy}"
    return PreparedLaunch(environment, f"{description}, board {client.board}, {mps_state.description}")


def _mps_state(use_mps: MpsUse, home: Path, environ: Mapping[str, str]) -> mps.Mps:
    if use_mps == "none":
        return mps.without(home)
    state = mps.start(home, environ)
    if use_mps == "must" and not state.running:
        raise InputError("--policy", None, f"one that does without MPS, as there is {state.description}")
    return state


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
