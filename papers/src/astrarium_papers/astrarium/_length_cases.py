"""Cases of requests with lengths: what comes, how long batches take, by when, and on how many GPUs.

Lengths are Orloj's synthetic modes (chapter 4 of Yu's dissertation), lengths instead of times, and texts
with a heavy tail. A batch takes what a launch takes until it has so many tokens, then time grows with its
tokens, as of an encoder on an H200 (which has its 2,000 tokens in .5 ms).
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from astrarium.core.random_streams import stream
from astrarium.serving.scenario import Scenario, parse

LONGEST = 512
BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
SIZES = (1, 2, 4, 8, 16, 32, 64)
LAUNCH_US = 490  # of a batch whatever it holds
TOKENS_PER_US = 2.6  # what batches beyond the flat part go through
MODES = (1, 2, 3, 4, 8)
SIGMAS = (0.4, 0.8, 1.2)  # of lognormal lengths
FLATS = (128, 512, 2048, 8192)  # tokens up to which a batch costs its launch
MULTIPLES = (2, 3, 5, 10)  # of what the longest takes alone
GPUS = (1, 2, 4, 8)
ARRIVALS: tuple[dict[str, Any], ...] = ({"arrivals": "poisson"}, {"arrivals": "gamma", "shape": 0.3})
COUNT = 440
SEED = 34


class LengthCase(NamedTuple):
    lengths: str
    flat: int
    multiple: int
    gpus: int
    arrivals: dict[str, Any]

    @property
    def name(self) -> str:
        came = "bursts" if self.arrivals["arrivals"] == "gamma" else "poisson"
        return f"{self.lengths}, flat to {self.flat}, {self.multiple} x longest, {self.gpus} GPUs, {came}"

    def scenario(self, policy: dict[str, Any], seconds: float) -> Scenario:
        surface = surface_of(self.flat)
        slo = self.multiple * surface[LONGEST][1]
        return parse(
            {
                "cluster": {"gpus": self.gpus},
                "models": {
                    "texts": {
                        "slo": f"{slo:.3f}us",
                        "max_batch": SIZES[-1],
                        "profile": {"rounded": True, "lengths": _written(surface)},
                    }
                },
                "workload": {
                    **self.arrivals,
                    "rate": "1000/s",
                    "duration": f"{seconds * 1.1:.3f}s",
                    "warmup": f"{seconds * 0.1:.3f}s",
                    "lengths": LENGTHS[self.lengths],
                },
                "policy": policy,
            }
        )


def surface_of(flat: int) -> dict[int, dict[int, float]]:
    """Return microseconds by length and size; *flat* tokens cost no more than their launch."""
    return {
        length: {size: LAUNCH_US + max(0, size * length - flat) / TOKENS_PER_US for size in SIZES}
        for length in BUCKETS
    }


def _written(surface: dict[int, dict[int, float]]) -> dict[int, dict[int, str]]:
    return {length: {size: f"{time:.3f}us" for size, time in row.items()} for length, row in surface.items()}


def _modes(count: int) -> dict[str, Any]:
    """Return modes of equal share, as far apart as the first is from nothing, a tenth of that wide."""
    first = 0.5 if count > 1 else 1.0
    distance = 0.8 * LONGEST / (first + count - 1)
    weights: dict[int, float] = {}
    for place in range(count):
        peak = distance * (first + place)
        for step in range(-3, 4):
            length = max(1, min(LONGEST, round(peak + step * 0.1 * distance)))
            weights[length] = weights.get(length, 0.0) + _BELL[abs(step)]
    return {"weights": dict(sorted(weights.items()))}


_BELL = (0.383, 0.242, 0.061, 0.006)  # of a normal distribution, step by step of its deviation

LENGTHS: dict[str, dict[str, Any]] = {
    **{f"{count} modes": _modes(count) for count in MODES},
    **{f"tail {sigma}": {"lognormal": {"median": 64, "sigma": sigma}} for sigma in SIGMAS},
}


def cases() -> list[LengthCase]:
    """Return so many of all cases that can be, drawn once and for all."""
    every = [LengthCase(*one) for one in product(LENGTHS, FLATS, MULTIPLES, GPUS, ARRIVALS)]
    order = stream(SEED, "cases with lengths").permutation(len(every))
    return [every[place] for place in order[:COUNT]]
