"""The execution times of each case as applications of a dynamic model (`_settings` gives the reasons)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

from astrarium.core.distributions import Mixture, Normal
from astrarium.core.quantities import MILLISECOND, Duration
from astrarium.serving import zoo
from astrarium_papers.orloj._settings import (
    C1,
    CLUSTER_WIDTH,
    LONG_SHARE,
    PEAK_DISTANCE_MS,
    SIGMA_MS,
    STATIC_GPU,
)
from astrarium_papers.orloj._tables import Workload

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
_STANDARD = NormalDist()
_HALVINGS = 60


class Case(NamedTuple):
    """The execution times of a case: a batch of k takes c0 + c1 k times its longest member. `name` is its
    ID."""

    name: str
    title: str
    applications: dict[str, Any]
    mean_ms: float
    p99_ms: float
    c0_ms: float
    c1: float = C1


def real(workload: Workload) -> Case:
    """Return the case of a row of Table 4.1: its mean and its P99 are met."""
    clusters = workload.task == "image classification"
    applications = (_clusters if clusters else _hump)(workload.mean_ms, workload.p99_ms)
    title = f"{workload.model}/{workload.dataset}"
    return _dynamic(workload.case, title, applications, workload.mean_ms, workload.p99_ms)


def modes(count: int, scale: float = 1.0) -> Case:
    """Return a case of several modes; *scale* stretches every time."""
    return _normals(f"{NUMBERS[count - 1]}-modal", f"modes: {count}", [1.0] * count, scale)


def two_modes(case: str, title: str) -> Case:
    """Return the case `std-0.5`, or `std-0.5/2` where the short and the long mode differ."""
    sigmas = [float(sigma) for sigma in case.removeprefix("std-").split("/")]
    return _normals(case, title, sigmas * (2 // len(sigmas)))


def static(case: str, model: str) -> Case:
    profile = zoo.lookup(STATIC_GPU, model).profile
    alpha = profile.alpha / MILLISECOND
    beta = profile.beta / MILLISECOND
    alone = alpha + beta
    applications = {"all": {"time": {"constant": _ms(alone)}}}
    return Case(case, f"{model}/ImageNet", applications, alone, alone, beta, alpha / alone)


def _dynamic(name: str, title: str, applications: dict[str, Any], mean_ms: float, p99_ms: float) -> Case:
    return Case(name, title, applications, mean_ms, p99_ms, (1 - C1) * mean_ms)


def _clusters(mean_ms: float, p99_ms: float) -> dict[str, Any]:
    """Return two clusters. Only long requests reach the P99, so it is a quantile of their cluster."""
    above = _STANDARD.inv_cdf(1 - 0.01 / LONG_SHARE)
    long = p99_ms / (1 + CLUSTER_WIDTH * above)
    short = (mean_ms - LONG_SHARE * long) / (1 - LONG_SHARE)
    return {
        "short": {"share": 1 - LONG_SHARE, "time": _normal(short, CLUSTER_WIDTH * short)},
        "long": {"share": LONG_SHARE, "time": _normal(long, CLUSTER_WIDTH * long)},
    }


def _hump(mean_ms: float, p99_ms: float) -> dict[str, Any]:
    """Medians m exp(-sigma) and m exp(sigma): their mean is m cosh(sigma) exp(sigma^2 / 2), and their P99 is
    m exp(z sigma), where z is that of two standard normals at -1 and 1."""
    z = _bisect(lambda z: (_STANDARD.cdf(z + 1) + _STANDARD.cdf(z - 1)) / 2 - 0.99, 0.0, 10.0)
    spread = math.log(p99_ms / mean_ms)
    sigma = _bisect(lambda s: z * s - math.log(math.cosh(s)) - s * s / 2 - spread, 0.0, 1.0)
    middle = p99_ms / math.exp(z * sigma)
    medians = {"short": middle * math.exp(-sigma), "long": middle * math.exp(sigma)}
    return {
        name: {"time": {"lognormal": {"median": _ms(median), "sigma": sigma}}}
        for name, median in medians.items()
    }


def _normals(name: str, title: str, sigmas: Sequence[float], scale: float = 1.0) -> Case:
    first = 0.5 if len(sigmas) > 1 else 1.0
    peaks = [scale * PEAK_DISTANCE_MS * (first + place) for place in range(len(sigmas))]
    pairs = [(peak, scale * SIGMA_MS * sigma) for peak, sigma in zip(peaks, sigmas, strict=True)]
    applications = {f"mode-{place}": {"time": _normal(*pair)} for place, pair in enumerate(pairs, 1)}
    return _dynamic(name, title, applications, sum(peaks) / len(peaks), _p99_ms(pairs))


def _p99_ms(modes_ms: Sequence[tuple[float, float]]) -> float:
    parts = [Normal(_duration(mean), _duration(std)) for mean, std in modes_ms]
    return Mixture(tuple(parts), (1.0,) * len(parts)).quantile(0.99) / MILLISECOND


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def _normal(mean_ms: float, std_ms: float) -> dict[str, Any]:
    return {"normal": {"mean": _ms(mean_ms), "std": _ms(std_ms)}}


def _ms(value: float) -> str:
    return f"{value:.6f}ms"


def _duration(value_ms: float) -> Duration:
    return Duration(round(value_ms * MILLISECOND))
