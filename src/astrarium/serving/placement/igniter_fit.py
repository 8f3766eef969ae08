"""From measurements to iGniter's coefficients, by least squares.

Measured for each model alone on the GPU, for some batch sizes (rows) and shares (columns): latency on the
GPU, power and frequency; the use of the L2 cache on the diagonal of that grid; and one run beside another
model that used a known part of the cache. Measured for the GPU: 1, 2, 3, ... copies of one model together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from astrarium.core.errors import InputError
from astrarium.serving.placement.igniter_model import Curve, GpuTraits, Line, ModelTraits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.floating[Any]]

Above0 = Annotated[float, msgspec.Meta(gt=0)]
From0 = Annotated[float, msgspec.Meta(ge=0)]
Row = tuple[Above0, ...]
_UNKNOWNS = 5  # of the curve of active times
_STEPS, _FAR = 400, 1000.0  # of the search for k4: how fine, and how far beyond the largest share
_GOLDEN = (5**0.5 - 1) / 2


class Copies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For 1, 2, 3, ... copies: power in W, frequency in MHz, and how long a kernel waits, in ms."""

    power: Row
    frequency: Row
    idle: Row


class GpuMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """*bandwidth* in bytes a ms, *unit* (of shares) in percent."""

    frequency: Above0
    power_cap: Above0
    idle_power: From0
    bandwidth: Above0
    unit: Annotated[float, msgspec.Meta(gt=0, le=100)]
    copies: Copies


class Beside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Active times in ms, alone and beside a model that used *l2_use* of the cache; the frequency then."""

    active_alone: Above0
    active: Above0
    frequency: Above0
    l2_use: Above0


class ModelMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tables by batch size and share; `l2_use[i]` is for the i-th batch size with the i-th share."""

    input_bytes: From0
    output_bytes: From0
    kernels: Annotated[int, msgspec.Meta(ge=0)]
    idle: From0
    latency: tuple[Row, ...]
    power: tuple[Row, ...]
    frequency: tuple[Row, ...]
    l2_use: Row
    beside: Beside


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times in ms, power in W, frequencies in MHz, shares in percent."""

    source: str
    batches: tuple[Annotated[int, msgspec.Meta(ge=1)], ...]
    shares: Row
    gpu: GpuMeasured
    models: dict[str, ModelMeasured]

    def __post_init__(self) -> None:
        if len(self.batches) * len(self.shares) <= _UNKNOWNS or min(len(self.batches), len(self.shares)) < 3:
            raise InputError("batches", list(self.batches), "three batch sizes and three shares at least")
        for name, model in self.models.items():
            for table in ("latency", "power", "frequency"):
                _check_table(f"models.{name}.{table}", getattr(model, table), self)
            if len(model.l2_use) != min(len(self.batches), len(self.shares)):
                raise InputError(f"models.{name}.l2_use", list(model.l2_use), "a number for each batch size")
        _check_copies(self.gpu.copies)


def _check_table(field: str, table: tuple[Row, ...], profile: Profile) -> None:
    rows, columns = len(profile.batches), len(profile.shares)
    if len(table) != rows or any(len(row) != columns for row in table):
        expected = f"{rows} rows (batch sizes) of {columns} numbers (shares)"
        raise InputError(field, [list(row) for row in table], expected)


def _check_copies(copies: Copies) -> None:
    if not 3 <= len(copies.power) == len(copies.frequency) == len(copies.idle):
        raise InputError("gpu.copies", None, "power, frequency and idle for 1, 2, 3 copies at least")


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
    """MHz for each W past the cap. What throttled copies would have drawn is not measured: each is taken to
    add as much as those before on average. The line starts where the cap is reached."""
    power, frequency = measured.copies.power, measured.copies.frequency
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


def fit_model(profile: Profile, name: str) -> ModelTraits:
    import numpy as np

    measured, gpu = profile.models[name], profile.gpu
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
    full, power = speeds >= 1, np.array(measured.power).ravel() - gpu.idle_power
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


def fit_models(profile: Profile) -> Mapping[str, ModelTraits]:
    return {name: fit_model(profile, name) for name in profile.models}


def _contention(beside: Beside, frequency: float) -> float:
    slowed = beside.active * beside.frequency / frequency / beside.active_alone
    return (slowed - 1) / beside.l2_use


def fit_curve(batches: Floats, shares: Floats, times: Floats) -> Curve:
    """With k4 fixed the other four are a linear problem, so only k4 has to be searched for: on a grid that is
    fine where the curve is steep, then by golden sections between the best point's neighbours."""
    import numpy as np

    def solved(k4: float) -> tuple[float, Floats]:
        part = 1 / (shares + k4)
        columns = np.stack([batches**2 * part, batches * part, part, np.ones_like(part)], axis=1)
        found = np.linalg.lstsq(columns, times, rcond=None)[0]
        return float(((columns @ found - times) ** 2).sum()), found

    grid = np.geomspace(1e-3, shares.max() + _FAR, _STEPS) - shares.min()
    best = int(np.argmin([solved(k4)[0] for k4 in grid]))
    low, high = float(grid[max(0, best - 1)]), float(grid[min(_STEPS - 1, best + 1)])
    while high - low > 1e-9:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if solved(left)[0] < solved(right)[0] else (left, high)
    k1, k2, k3, k5 = solved(low)[1].tolist()
    return Curve(k1, k2, k3, low, k5)


def _line(x: Floats, y: Floats) -> Line:
    import numpy as np

    slope, start = np.polyfit(x, y, 1).tolist()
    return Line(slope, start)
