"""The states of all random generators: a run goes on as if it had never stopped."""

from __future__ import annotations

import random
import sys
from typing import Any


def random_states() -> dict[str, Any]:
    import torch

    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = (name, keys.tolist(), *rest)  # plain numbers: nobody need trust the file
    if _on_gpu():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random(states: dict[str, Any]) -> None:
    import torch

    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy

        name, keys, *rest = states["numpy"]
        numpy.random.set_state((name, numpy.asarray(keys, numpy.uint32), *rest))
    if "cuda" in states and _on_gpu():
        torch.cuda.set_rng_state(states["cuda"])


def _on_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())


def seed_all(seed: int) -> None:
    """Seed all random generators: a slot has trained other candidates before."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
