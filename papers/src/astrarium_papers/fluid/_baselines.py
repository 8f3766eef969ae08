"""What Fluid is compared with (Section 3.2.1.2 of the dissertation): how searches run without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Baseline(NamedTuple):
    """A policy, and settings for searches that have them."""

    policy: str
    search: Mapping[str, Any]


# A queue, and one GPU for each trial: what most searches do.
ONE_TRIAL_ONE_GPU = Baseline("fifo", {})

# Of ASHA and BOHB: a new trial begins whenever a GPU is idle, so as many are open as there are GPUs.
ASYNCHRONOUS = Baseline("fifo", {"concurrency": 0})
