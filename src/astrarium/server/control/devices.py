"""Which of this machine's devices a GPU of the scenario stands for. No driver is loaded to find out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

CPU = "cpu"


def visible_gpus(devices: Path = Path("/dev"), allowed: str | None = None) -> int:
    """Return how many NVIDIA GPUs a process here may use; *allowed* is CUDA_VISIBLE_DEVICES."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES") if allowed is None else allowed
    there = sum(bool(re.fullmatch(r"nvidia\d+", device.name)) for device in devices.glob("nvidia*"))
    if allowed is None:
        return there
    return min(there, len([name for name in allowed.split(",") if name.strip() not in ("", "-1")]))


def device_chooser(wanted: str, gpus: int) -> Callable[[int], str]:
    """Return a function from a GPU's number to its device; `auto` is CUDA where there is any.

    More GPUs than there are devices share them in turn.
    """
    if wanted == CPU or (wanted == "auto" and not gpus):
        return lambda gpu: CPU
    return lambda gpu: f"cuda:{gpu % max(gpus, 1)}"
