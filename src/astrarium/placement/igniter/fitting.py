"""iGniter's coefficients are fitted to measurements, by least squares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from astrarium.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.floating[Any]]
from astrarium.placement.igniter.model import GpuTraits, KernelCurve, LinearFit, ModelTraits
from astrarium.placement.igniter.profile import Beside, GpuMeasured, IgniterProfile

# of the search for k4: how fine, and how far beyond the largest share
_STEPS = 400
_FAR = 1000.0
_GOLDEN = (5**0.5 - 1) / 2


def fit_gpu(measured: GpuMeasured) -> GpuTraits:
    import numpy as np

    speeds = np.array(measured.copies.frequency) / measured.frequency
    idle = np.array(measured.copies.idle) * speeds
    counts = np.arange(2.0, len(idle) + 1)
    return GpuTraits(
        frequency=measured.frequency,
        throttle=_throttle(measured),
        idle_power=measured.idle_power,
        power_cap=measured.power_cap,
        turn=_line(counts, idle[1:] - idle[0]),
        bandwidth=measured.bandwidth,
        unit=measured.unit,
    )


def _throttle(measured: GpuMeasured) -> float:
    """Fit the change of frequency, in MHz, for each W past the cap.

    What throttled copies would have drawn is not measured: each is taken to add as much as those before on
    average. The line starts where the cap is reached.
    """
    power = measured.copies.power
    frequency = measured.copies.frequency
    full = next((n for n, value in enumerate(frequency) if value < measured.frequency), len(frequency))
    if full == len(frequency):
        return 0.0
    if full < 2:
        raise InputError("gpu.copies.frequency", list(frequency), "two copies at full frequency at least")
    step = (power[full - 1] - power[0]) / (full - 1)
    wanted = [power[full - 1] + step * (n - full + 1) for n in range(full, len(power))]
    beyond = [max(0.0, watts - measured.power_cap) for watts in wanted]
    falls = [value - measured.frequency for value in frequency[full:]]
    squares = sum(watts * watts for watts in beyond)
    return sum(x * y for x, y in zip(beyond, falls, strict=True)) / squares if squares else 0.0


def fit_model(profile: IgniterProfile, name: str) -> ModelTraits:
    import numpy as np

    measured = profile.models[name]
    gpu = profile.gpu
    batches, shares = (
        np.array(grid, dtype=float).ravel()
        for grid in np.meshgrid(profile.batches, profile.shares, indexing="ij")
    )
    speeds = np.array(measured.frequency).ravel() / gpu.frequency
    active = np.array(measured.latency).ravel() * speeds - measured.idle
    curve = fit_curve(batches, shares, active)
    fitted = np.array([curve.time(b, r) for b, r in zip(batches, shares, strict=True)])
    if fitted.min() <= 0:
        raise InputError(f"models.{name}.latency", None, "latencies near a curve that stays above 0")
    abilities = 1000 * batches / fitted
    full = speeds >= 1
    power = np.array(measured.power).ravel() - gpu.idle_power
    if full.sum() < 2:
        raise InputError(f"models.{name}.frequency", None, "two points at full frequency at least")
    diagonal = [place * len(profile.shares) + place for place in range(len(measured.l2_use))]
    return ModelTraits(
        active=curve,
        idle=measured.idle,
        kernels=measured.kernels,
        input_bytes=measured.input_bytes,
        output_bytes=measured.output_bytes,
        power=_line(abilities[full], power[full]),
        l2_use=_line(abilities[diagonal], np.array(measured.l2_use)),
        contention=_contention(measured.beside, gpu.frequency),
    )


def fit_models(profile: IgniterProfile) -> Mapping[str, ModelTraits]:
    return {name: fit_model(profile, name) for name in profile.models}


def _contention(beside: Beside, frequency: float) -> float:
    slowed = beside.active * beside.frequency / frequency / beside.active_alone
    return (slowed - 1) / beside.l2_use


def fit_curve(batches: Floats, shares: Floats, times: Floats) -> KernelCurve:
    """Fit the curve of kernel times; with k4 fixed the other four coefficients are a linear problem.

    So only k4 is searched for: on a grid that is fine where the curve is steep, then by golden sections
    between the best point's neighbours.
    """
    import numpy as np

    def solved(k4: float) -> tuple[float, Floats]:
        part = 1 / (shares + k4)
        columns = np.stack([batches**2 * part, batches * part, part, np.ones_like(part)], axis=1)
        coefficients = np.linalg.lstsq(columns, times, rcond=None)[0]
        return float(((columns @ coefficients - times) ** 2).sum()), coefficients

    grid = np.geomspace(1e-3, shares.max() + _FAR, _STEPS) - shares.min()
    best = int(np.argmin([solved(k4)[0] for k4 in grid]))
    low = float(grid[max(0, best - 1)])
    high = float(grid[min(_STEPS - 1, best + 1)])
    while high - low > 1e-9:
        left = high - _GOLDEN * (high - low)
        right = low + _GOLDEN * (high - low)
        low, high = (low, right) if solved(left)[0] < solved(right)[0] else (left, high)
    k1, k2, k3, k5 = solved(low)[1].tolist()
    return KernelCurve(k1, k2, k3, low, k5)


def _line(x: Floats, y: Floats) -> LinearFit:
    import numpy as np

    slope, start = np.polyfit(x, y, 1).tolist()
    return LinearFit(slope, start)
