"""Where these benchmarks meet the gate: how a client is put under it, and how its policy is changed.

A board is the name of the shared state that the clients of one measurement have in common. MPS carries the
clients where it is available, as `astrarium gate run` has it.
"""

from __future__ import annotations

import os
from pathlib import Path

from astrarium.gate import library, mps
from astrarium.gate.board import SHARED_MEMORY, Board
from astrarium.gate.client import Client, client_environment
from astrarium.gate.driver import VISIBLE, find_driver

# Settings of a board that a change of its policy would leave as they are.
UNLESS_SAID = {"search_limit": 0.0, "window": 0.0}


PRIORITY = "BEST_EFFORT_MPS_PRIORITY"  # 0 or 1 (below normal), to see what MPS makes of it


def board_path(board: str) -> Path:
    return SHARED_MEMORY / f"astrarium-gate-{board}"


def environment(role: str, board: str) -> dict[str, str]:
    """Return what to add to the environment of a client, so that it is gated. Role: latency or
    best-effort."""
    home = library.private_home()
    gate = library.prepared(library.gate_library(), find_driver(), home)
    carried = {**os.environ, **mps.start(home, os.environ).variables}
    if role == "best-effort" and PRIORITY in os.environ:
        carried["CUDA_MPS_CLIENT_PRIORITY"] = os.environ[PRIORITY]
    client = Client(role, os.environ.get(VISIBLE, "0"), role, board_path(board))
    whole = client_environment(carried, gate, client)
    return {name: value for name, value in whole.items() if os.environ.get(name) != value}


def set_policy(board: str, name: str, **knobs: float) -> None:
    """Have clients of this board share the GPU by this policy from now on."""
    Board(board_path(board)).change(name, {**UNLESS_SAID, **knobs})
