"""Section 3.4: what queueing theory says of two models on two GPUs, with Poisson arrivals and fixed times.

`load` is the rate of both models together times what one request takes on one GPU (the paper's lambda D).
"""

from __future__ import annotations

from math import sqrt


def waiting(rate: float, time: float) -> float:
    """Return the mean wait before a server with one fixed time (M/D/1)."""
    busy = rate * time
    return rate * time**2 / (2 * (1 - busy)) if busy < 1 else float("inf")


def simple(rate: float, time: float, share: float = 0.5) -> float:
    """Return the mean latency where each model has a GPU; *share* of the requests are for the first."""
    waits = (part * waiting(part * rate, time) for part in (share, 1 - share))
    return time + sum(waits)


def pipeline(rate: float, latency: float, slowest: float) -> float:
    """Return the mean latency of a pipeline for both: requests wait as if for its slowest stage alone."""
    return latency + waiting(rate, slowest)


def most_communication(load: float, share: float = 0.5) -> float:
    """Return the overhead, as a factor on each stage, at which a pipeline of two equal stages is as slow as
    the simple placement: the smaller root of 3 u a^2 - (8 + 4 u w) a + 8 w = 0, u being the load and w the
    simple placement's latency."""
    latency = simple(load, 1.0, share)
    half = 4 + 2 * load * latency
    return 8 * latency / (half + sqrt(half**2 - 24 * load * latency))


def most_unevenness(load: float, share: float = 0.5) -> float:
    """The factor on the slower of two stages, whose sum stays the same, at which both are as slow: the
    positive root of u b^2 + 4 u v b - 8 v = 0, v being the simple placement's wait. As the load goes to zero
    so do both waits, and what is left is their ratio."""
    wait = simple(load, 1.0, share) - 1
    by_load = wait / load if load else (share**2 + (1 - share) ** 2) / 2
    return 4 * by_load / (wait + sqrt(wait**2 + 2 * by_load))
