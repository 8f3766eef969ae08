"""The GPUs of this machine, or emulated ones, as the slots on them see them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from astrarium.core.errors import InputError
from astrarium.engines.gate.driver import VISIBLE, NoGpu, chosen_gpu, count_gpus
from astrarium.engines.tuning_orders import Setup
from astrarium.engines.tuning_training import Emulated

CLIENT = "astrarium tune"  # as which slots are on the gate's board


def found_gpus(gpus: int | Sequence[int] | None, emulated: Emulated | None) -> tuple[int, ...]:
    """So many, these, or all that there are."""
    if isinstance(gpus, int) and gpus < 1:
        raise InputError("gpus", gpus, "1 or more")
    if emulated is not None:
        if gpus is None:
            raise InputError("gpus", None, "how many GPUs are emulated")
        return tuple(range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    there = count_gpus()
    wanted = tuple(range(there if gpus is None else gpus)) if not isinstance(gpus, Sequence) else tuple(gpus)
    missing = [gpu for gpu in wanted if gpu not in range(there)]
    if missing or not wanted:
        raise InputError("gpus", gpus, f"GPUs of this machine, which has {there}; others can be emulated")
    return wanted


def environment(
    gpu: int, setup: Setup, gate: bool, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Of the slots on a GPU, each of which sees no other."""
    own = {"GLOO_SOCKET_IFNAME": "lo", **environ}
    if not setup.device.startswith("cuda"):
        return {**own, VISIBLE: "", "OMP_NUM_THREADS": str(setup.threads)}
    visible = {**own, VISIBLE: chosen_gpu(gpu, environ)}
    return (under_gate(gpu, own) or visible) if gate else visible


def under_gate(gpu: int, environ: Mapping[str, str]) -> dict[str, str] | None:
    """As `astrarium gpu run --class best-effort` would start them, with MPS where there is any; None where
    there is no gate."""
    from astrarium.engines.gate.board import board_path
    from astrarium.engines.gate.environment import Client
    from astrarium.engines.gate.launch import shared

    try:
        chosen = chosen_gpu(gpu, environ)
        return shared(
            Client(CLIENT, chosen, "best-effort", board_path(chosen)), {}, "may", environ
        ).environment
    except (NoGpu, InputError):
        return None
