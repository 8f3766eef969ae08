"""The models of AlpaServe's authors, the sets of them that they serve, and the traffic of their experiments.

Sets: Table 1 of the paper, and the authors' public code where that differs. A set is a list of names, in the
order in which popularity falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from astrarium.core.errors import InputError, one_of
from astrarium.core.processes import Floats, Times, merged
from astrarium.core.quantities import SECOND
from astrarium.placement.measured import alpaserve_forms
from astrarium.placement.problem import ALONE, Form, Shape
from astrarium.serving.scenario.rates import zipf

GPU_MEMORY = 13 * 2**30  # of 16 GB, what is left for weights
SKEW = 0.5  # of the power law over models
Numbers = npt.NDArray[np.int32]
Split = Literal["power-law", "uniform"]

_MIXED = ("bert-6.7b", "moe-5.3b", "bert-2.6b", "moe-2.4b", "bert-1.3b", "moe-1.3b")

SETS: dict[str, tuple[str, ...]] = {
    "S1": ("bert-1.3b",) * 32,
    "S2": ("bert-6.7b",) * 32,
    "S3": _MIXED * 10,
    "S1-artifact": ("bert-1.3b",) * 48,
    "S2-artifact": ("bert-6.7b",) * 48,
    "S3-artifact": _MIXED * 12,
    "three-berts": ("bert-6.7b", "bert-2.6b", "bert-1.3b") * 14,  # of the ablations in the authors' code
}


def names() -> list[str]:
    return list(alpaserve_forms())


def measured(model: str) -> Mapping[Shape, Form]:
    """Return the forms of a model as the authors measured them, for batches of one request."""
    if model not in names():
        raise InputError("model", model, f"a model of AlpaServe: {one_of(names(), model)}")
    return alpaserve_forms()[model]


def alone(model: str) -> Form | None:
    """Return the form of a model on one GPU, if it fits there."""
    return measured(model).get(ALONE)


def rates(total: float, models: int, split: Split = "power-law") -> list[float]:
    """Divide a total rate among models; return the requests a second of each."""
    shares = zipf(models, 0 if split == "uniform" else SKEW)
    return [total * share for share in shares]


def as_published(rates: Sequence[float], cv: float, seconds: float, seed: int = 0) -> tuple[Floats, Numbers]:
    """Return Gamma traffic (seconds and models) as in the authors' code.

    It is from numpy's old generator, seeded with the model's number, to which *seed* is added. The process
    begins with a whole gap at 0.
    """
    streams = [_old_gamma(rate, cv, seconds, seed + number) for number, rate in enumerate(rates)]
    times = np.concatenate(streams)
    models = np.repeat(np.arange(len(rates), dtype=np.int32), [len(stream) for stream in streams])
    order = np.argsort(times, kind="stable")
    return times[order], models[order]


def _old_gamma(rate: float, cv: float, seconds: float, seed: int) -> Floats:
    chance = np.random.RandomState(seed)
    shape = 1 / cv**2
    scale = cv**2 / rate
    count = max(int(rate * seconds * 1.2), 1)
    pieces = []
    reached = 0.0
    while reached < seconds:
        gaps = chance.gamma(shape, scale, count)
        gaps[0] += reached
        pieces.append(np.cumsum(gaps))
        reached = float(pieces[-1][-1])
    moments = np.concatenate(pieces)
    return moments[moments < seconds]


def windows(
    rates: Sequence[Sequence[float]],
    cv: float,
    window: float,
    generator: np.random.Generator,
    stationary: bool,
) -> tuple[Times, Numbers]:
    """Return Gamma traffic whose rates change from window to window: `rates[window][model]`.

    The authors restart the process in each window with a whole gap; with bursts that brings more requests
    than the rate says. *stationary*: each window begins in the middle of a gap, as a process that has long
    run does.
    """
    models = len(rates[0])
    streams: list[list[Floats]] = [[] for _ in range(models)]
    for number, in_window in enumerate(rates):
        for model, rate in enumerate(in_window):
            moments = _gamma_window(rate, cv, window, generator, stationary)
            streams[model].append(moments + number * window)
    joined = [np.concatenate(pieces) for pieces in streams]
    return merged([np.rint(stream * SECOND).astype(np.int64) for stream in joined])


def _gamma_window(
    rate: float, cv: float, window: float, chance: np.random.Generator, stationary: bool
) -> Floats:
    if rate <= 0:
        return np.empty(0)
    shape = 1 / cv**2
    scale = cv**2 / rate
    reached = 0.0
    pieces = []
    if stationary:  # what is left of a gap that is met by chance: long ones are met more often
        reached = chance.gamma(shape + 1, scale) * chance.random()
        pieces.append(np.array([reached]))
    while reached < window:
        steps = np.cumsum(chance.gamma(shape, scale, int(rate * window * 1.2) + 16))
        pieces.append(steps + reached)
        reached = float(pieces[-1][-1])
    moments = np.concatenate(pieces)
    return moments[moments < window]
