"""iGniter's model predicts how long a batch takes on a part of a GPU, beside others on the same GPU.

Xu et al., "iGniter: Interference-Aware GPU Resource Provisioning for Predictable DNN Inference in the Cloud"
(IEEE TPDS 34(3), 2022); coefficients as the authors' public code fits them (`fit_model`). Three things slow
a batch that has company: its kernels wait for their turn, the others displace its data from the L2 cache, and
the GPU lowers its frequency when all together would draw more power than it may.

Inside, time is in ms and shares are in percent of the SMs, as in the profiles. The model takes everybody on a
GPU to be busy all the time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import FOREVER, Time, to_ms

SOURCE = "igniter.json"


def profile() -> Any:
    """Return the profile that comes along, of AlexNet, ResNet50, VGG19 and SSD on a V100, as plain data."""
    return json.loads(files("astrarium.placement").joinpath(SOURCE).read_text(encoding="utf-8"))


WHOLE = 100.0
LOWEST_FREQUENCY = 0.1  # of the highest: far beyond the measured points a falling line means nothing


class LinearFit(msgspec.Struct, frozen=True):
    slope: float = 0.0
    start: float = 0.0

    def at(self, x: float) -> float:
        return self.slope * x + self.start


class KernelCurve(msgspec.Struct, frozen=True, tag="fitted"):
    """Kernels of a batch of b run for (k1 b^2 + k2 b + k3) / (r + k4) + k5 ms on r percent of the SMs."""

    k1: float
    k2: float
    k3: float
    k4: float
    k5: float

    def time(self, batch: int, share: float) -> float:
        return self._work(batch) / (share + self.k4) + self.k5

    def share_within(self, batch: int, budget: float) -> float:
        """Return the least share with which kernels run for at most *budget*."""
        return self._work(batch) / (budget - self.k5) - self.k4 if budget > self.k5 else math.inf

    def _work(self, batch: int) -> float:
        return (self.k1 * batch + self.k2) * batch + self.k3


class Inverse(msgspec.Struct, frozen=True, tag="inverse"):
    """A model that nobody measured on parts of a GPU takes twice the time on half of the SMs.

    That errs on the safe side: what cannot fill a whole GPU loses less. `times[b]` is for the whole GPU.
    """

    times: tuple[Time, ...]

    def time(self, batch: int, share: float) -> float:
        return self._whole(batch) * WHOLE / share

    def share_within(self, batch: int, budget: float) -> float:
        return self._whole(batch) * WHOLE / budget if budget > 0 else math.inf

    def _whole(self, batch: int) -> float:
        return to_ms(self.times[batch] if batch < len(self.times) else FOREVER)


class ModelTraits(msgspec.Struct, frozen=True):
    """These traits describe a model on one kind of GPU.

    *idle* is the time in which none of its kernels runs, *contention* how much its active time grows for each
    unit of the others' L2 use. Power (what it adds to the idle GPU's) and L2 use are lines in its ability:
    requests a second, if its kernels ran all the time.
    """

    active: KernelCurve | Inverse
    idle: float = 0.0
    kernels: int = 0
    input_bytes: float = 0.0
    output_bytes: float = 0.0
    power: LinearFit = LinearFit()
    l2_use: LinearFit = LinearFit()
    contention: float = 0.0

    def ability(self, batch: int, share: float) -> float:
        return 1000 * batch / self.active.time(batch, share)


class GpuTraits(msgspec.Struct, frozen=True):
    """These traits describe a kind of GPU; the defaults are of one of which nothing is known.

    Frequencies are in MHz, power in W, *bandwidth* of the link in bytes a ms; shares are whole multiples of
    *unit*. *throttle* is the change of frequency for each W beyond the cap, *turn* the wait of a kernel by
    the number of models on the GPU.
    """

    frequency: float = 1.0
    throttle: float = 0.0
    idle_power: float = 0.0
    power_cap: float = math.inf
    turn: LinearFit = LinearFit()
    bandwidth: float = math.inf
    unit: float = 2.5

    def speed(self, power: float) -> float:
        """Return the frequency when so much power is wanted, relative to the highest."""
        beyond = max(0.0, power - self.power_cap) if math.isfinite(self.power_cap) else 0.0
        return max(LOWEST_FREQUENCY, 1 + self.throttle * beyond / self.frequency)

    def turn_wait(self, models: int) -> float:
        return max(0.0, self.turn.at(models)) if models > 1 else 0.0


class TenantLoad(msgspec.Struct, frozen=True):
    """A tenant's load is a model at work: its batches, and its share in percent."""

    traits: ModelTraits
    batch: int
    share: float


class Prediction(msgspec.Struct, frozen=True):
    """A prediction: *latency* and *gpu* in ms, *throughput* in requests a second (inputs load meanwhile)."""

    latency: float
    gpu: float
    throughput: float


def predict(gpu: GpuTraits, loads: Sequence[TenantLoad]) -> list[Prediction]:
    """Predict latency and throughput of each of the models that share a GPU."""
    abilities = [load.traits.ability(load.batch, load.share) for load in loads]
    uses = [load.traits.l2_use.at(ability) for load, ability in zip(loads, abilities, strict=True)]
    drawn = (load.traits.power.at(ability) for load, ability in zip(loads, abilities, strict=True))
    speed = gpu.speed(gpu.idle_power + sum(drawn))
    turn = gpu.turn_wait(len(loads))
    return [
        _prediction(gpu, load, sum(uses[:place] + uses[place + 1 :]), turn, speed)
        for place, load in enumerate(loads)
    ]


def _prediction(gpu: GpuTraits, load: TenantLoad, others: float, turn: float, speed: float) -> Prediction:
    traits = load.traits
    batch = load.batch
    active = traits.active.time(batch, load.share) * (1 + traits.contention * max(0.0, others))
    on_gpu = (traits.kernels * turn + traits.idle + active) / speed
    answers = batch * traits.output_bytes / gpu.bandwidth
    latency = on_gpu + batch * traits.input_bytes / gpu.bandwidth + answers
    return Prediction(latency, on_gpu, 1000 * batch / (on_gpu + answers))


def batch_for(gpu: GpuTraits, traits: ModelTraits, budget: float, rate: float) -> int:
    """Return the smallest batch that keeps up with a *rate* (a second) when each takes *budget* ms."""
    a_ms = rate / 1000
    return max(1, math.ceil(budget * a_ms / (1 + traits.input_bytes * a_ms / gpu.bandwidth)))


def share_for(gpu: GpuTraits, traits: ModelTraits, batch: int, budget: float) -> float:
    """Return the least share, in percent and a multiple of the unit, for a latency of *budget* ms alone.

    It is more than the whole where none will do. That the GPU may throttle shows only in `predict`.
    """
    copies = batch * (traits.input_bytes + traits.output_bytes) / gpu.bandwidth
    needed = traits.active.share_within(batch, budget - traits.idle - copies)
    return max(1, math.ceil(needed / gpu.unit)) * gpu.unit if math.isfinite(needed) else math.inf


# From measurements to iGniter's coefficients, by least squares.


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.floating[Any]]

Above0 = Annotated[float, msgspec.Meta(gt=0)]
From0 = Annotated[float, msgspec.Meta(ge=0)]
Row = tuple[Above0, ...]
_UNKNOWNS = 5  # of the curve of active times
# of the search for k4: how fine, and how far beyond the largest share
_STEPS = 400
_FAR = 1000.0
_GOLDEN = (5**0.5 - 1) / 2


class Copies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of 1, 2, 3, ... copies: power in W, frequency in MHz, and a kernel's wait in ms."""

    power: Row
    frequency: Row
    idle: Row


class GpuMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of a GPU: *bandwidth* in bytes a ms, *unit* (of shares) in percent."""

    frequency: Above0
    power_cap: Above0
    idle_power: From0
    bandwidth: Above0
    unit: Annotated[float, msgspec.Meta(gt=0, le=100)]
    copies: Copies


class Beside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Active times in ms, alone and beside a model that used *l2_use* of the cache, with the frequency."""

    active_alone: Above0
    active: Above0
    frequency: Above0
    l2_use: Above0


class ModelMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of a model by batch size and share; `l2_use[i]` is for the i-th of both."""

    input_bytes: From0
    output_bytes: From0
    kernels: Annotated[int, msgspec.Meta(ge=0)]
    idle: From0
    latency: tuple[Row, ...]
    power: tuple[Row, ...]
    frequency: tuple[Row, ...]
    l2_use: Row
    beside: Beside


class IgniterProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A profile holds measurements to fit: times in ms, power in W, frequencies in MHz, shares in percent."""

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
        copies = self.gpu.copies
        if not 3 <= len(copies.power) == len(copies.frequency) == len(copies.idle):
            raise InputError("gpu.copies", None, "power, frequency and idle for 1, 2, 3 copies at least")


def _check_table(field: str, table: tuple[Row, ...], profile: IgniterProfile) -> None:
    rows = len(profile.batches)
    columns = len(profile.shares)
    if len(table) != rows or any(len(row) != columns for row in table):
        expected = f"{rows} rows (batch sizes) of {columns} numbers (shares)"
        raise InputError(field, [list(row) for row in table], expected)


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
        found = np.linalg.lstsq(columns, times, rcond=None)[0]
        return float(((columns @ found - times) ** 2).sum()), found

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
