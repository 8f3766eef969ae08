"""Slots see one GPU alone, and come under its kernel gate where there is one."""

from __future__ import annotations

import os
from collections.abc import Mapping

from astrarium.core.errors import InputError
from astrarium.gate.driver import VISIBLE, NoGpu, chosen_gpu
from astrarium.tuning.live.slots.messages import SlotSetup

CLIENT = "astrarium tune"  # as which slots are on the gate's board


def environment(
    gpu: int, setup: SlotSetup, gate: bool, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of the slots on a GPU, which see no other GPU."""
    own = {"GLOO_SOCKET_IFNAME": "lo", **environ}
    if not setup.device.startswith("cuda"):
        return {**own, VISIBLE: "", "OMP_NUM_THREADS": str(setup.threads)}
    visible = {**own, VISIBLE: chosen_gpu(gpu, environ)}
    return (under_gate(gpu, own) or visible) if gate else visible


def under_gate(gpu: int, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the environment that `astrarium gate run --class best-effort` would give, with MPS where there
    is any; None where there is no gate."""
    from astrarium.gate.board import board_path
    from astrarium.gate.client import Client
    from astrarium.gate.launch import shared

    try:
        chosen = chosen_gpu(gpu, environ)
        return shared(
            Client(CLIENT, chosen, "best-effort", board_path(chosen)), {}, "may", environ
        ).environment
    except (NoGpu, InputError):
        return None
