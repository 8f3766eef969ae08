"""iGniter's model predicts how long a batch takes on a part of a GPU, beside others on the same GPU.

Xu et al., "iGniter: Interference-Aware GPU Resource Provisioning for Predictable DNN Inference in the Cloud"
(IEEE TPDS 34(3), 2022); coefficients as the authors' public code fits them (`fit_model`). Three things slow
a batch that has company: its kernels wait for their turn, the others displace its data from the L2 cache, and
the GPU lowers its frequency when all together would draw more power than it may.

Inside, time is in ms and shares are in percent of the SMs, as in the profiles. The model takes everybody on a
GPU to be busy all the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from astrarium.core.quantities import FOREVER, Time, to_ms

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
