"""The ten workloads of Orion's evaluation on a V100, generated from what is printed of them.

Printed in the paper (Strati et al., "Orion: Interference-aware, Fine-grained GPU Sharing for ML
Applications"): average SMs busy, compute throughput and memory bandwidth (Table 1); training iterations a
second on a dedicated GPU (Table 4); kernels of 10s to 100s of us in inference and of 100s to 1000s in
training; that unknown kernels are very small and mostly in the update phase. The number of kernels of each
workload stands in the configuration files of the authors' public repository (eth-easl/orion,
benchmarking/eval).

How long a request takes alone on a V100: 6.8 ms (ResNet50) and 5.7 ms (MobileNetV2), batches of 4, from Table
A.1 of Elvinger's thesis; the same table's 34.1 ms for 4 samples of BERT-base, halved, times the 3.1 times
larger parameters of BERT-large. Ours: ResNet101 takes longer than ResNet50 as it has more kernels, and the
Transformer as long as keeps a GPU half busy at its 20 requests/s of Table 3, as the others' rates do.

The rule for the rest, drawn from fixed seeds:
- kinds in the shares of SHARES, in random order; compute kernels are LONGER times as long as the others on
  average; all durations are lognormal (sigma SPREAD) and scaled to the printed time of the whole;
- the last kernels of an iteration are the update: unknown, UPDATE_NS long, on one to four SMs. Of the others,
  the first third is forward, the rest backward;
- SMs are lognormal (sigma SM_SPREAD: the authors' profile of ResNet50's training names needs from 1 to 3136)
  and capped by the GPU's, scaled so that their mean over time is Table 1's;
- what a kernel uses of arithmetic and bandwidth is modelled from its kind and SMs
  (kernel_profiles.modelled_use), then scaled so that the mean over time is Table 1's.
"""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np

from astrarium.core.processes import Floats
from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.gate.kernel_profiles import KernelProfile, KernelUse
from astrarium_papers.kernels.trace import KernelTrace, modelled_use

SMS = 80
SEED = 1
SPREAD = 0.7
SM_SPREAD = 1.5
LONGER = 2.5
UPDATE_NS: Time = 4000
MOST_USED = 0.95
SHARES = {  # of compute, memory and unknown kernels, the update aside
    "vision": (0.35, 0.55, 0.10),  # a convolution, a normalization, an activation, now and then a sum
    "language": (0.40, 0.50, 0.10),
}


class Printed(msgspec.Struct, frozen=True):
    """What is printed of a workload: averages in per cent, over the whole request or iteration."""

    name: str
    family: str
    kernels: int
    duration: Time
    sms: float
    compute: float
    memory: float
    update: float = 0.0  # of the kernels

    @property
    def training(self) -> bool:
        return self.update > 0


def _iterations(per_second: float) -> Time:
    return round(SECOND / per_second)


BERT_LARGE = round(34.1 / 2 * 3.1 * MILLISECOND)
WORKLOADS = (
    Printed("resnet50-inference-b4", "vision", 175, round(6.8 * MILLISECOND), 24, 30, 22),
    Printed("mobilenetv2-inference-b4", "vision", 152, round(5.7 * MILLISECOND), 6, 18, 21),
    Printed("resnet101-inference-b4", "vision", 345, round(6.8 * 345 / 175 * MILLISECOND), 29, 24, 37),
    Printed("bert-inference-b2", "language", 572, BERT_LARGE, 95, 72, 28),
    Printed("transformer-inference-b4", "language", 459, 25 * MILLISECOND, 61, 52, 29),
    Printed("resnet50-training-b32", "vision", 624, _iterations(10.3), 81, 48, 45, 0.25),
    Printed("mobilenetv2-training-b64", "vision", 574, _iterations(12.5), 71, 34, 49, 0.25),
    Printed("resnet101-training-b32", "vision", 1219, _iterations(6.3), 85, 50, 43, 0.25),
    Printed("bert-training-b8", "language", 4777, _iterations(4.91), 61, 44, 21, 0.6),
    Printed("transformer-training-b8", "language", 4396, _iterations(6), 49.5, 29, 30, 0.6),
)


@cache
def traces() -> dict[str, KernelTrace]:
    return {printed.name: generate(printed) for printed in WORKLOADS}


def generate(printed: Printed, seed: int = SEED) -> KernelTrace:
    random = stream(seed, "v100-like", printed.name)
    updates = round(printed.update * printed.kernels)
    count = printed.kernels - updates
    kinds = [*random.choice(["compute", "memory", "unknown"], count, p=SHARES[printed.family])]
    kinds += ["unknown"] * updates
    durations = _durations(random, kinds[:count], updates, printed.duration)
    sms = _sms(random, durations, updates, printed.sms / 100)
    uses = _uses(kinds, durations, sms, printed)
    kernels = [
        KernelProfile(f"{kind}{place}", int(took), int(need), str(kind), use=use)
        for place, (kind, took, need, use) in enumerate(zip(kinds, durations, sms, uses, strict=True))
    ]
    phases = _phases(count, updates) if printed.training else ["forward"] * count
    return KernelTrace("V100-like", SMS, tuple(kernels), tuple(range(len(kernels))), tuple(phases))


def _phases(count: int, updates: int) -> list[str]:
    forward = count // 3
    return ["forward"] * forward + ["backward"] * (count - forward) + ["update"] * updates


def _durations(random: np.random.Generator, kinds: list[str], updates: int, total: Time) -> Floats:
    drawn = random.lognormal(0.0, SPREAD, len(kinds)) * [
        LONGER if kind == "compute" else 1.0 for kind in kinds
    ]
    drawn *= (total - updates * UPDATE_NS) / drawn.sum()
    return np.round(np.concatenate([drawn, np.full(updates, float(UPDATE_NS))]))


def _sms(random: np.random.Generator, durations: Floats, updates: int, mean: float) -> Floats:
    count = len(durations) - updates
    drawn = random.lognormal(0.0, SM_SPREAD, count)
    small = random.integers(1, 5, updates).astype(float)
    weights = durations / durations.sum()
    wanted = mean - float(small @ weights[count:]) / SMS
    shares = scaled(drawn, weights[:count], wanted, 1.0)
    return np.concatenate([np.maximum(1.0, np.round(shares * SMS)), small])


def _uses(kinds: list[str], durations: Floats, sms: Floats, printed: Printed) -> list[KernelUse]:
    modelled = [modelled_use(kind, need / SMS) for kind, need in zip(kinds, sms, strict=True)]
    weights = durations / durations.sum()
    compute = scaled(np.array([use.compute for use in modelled]), weights, printed.compute / 100, MOST_USED)
    memory = scaled(np.array([use.memory for use in modelled]), weights, printed.memory / 100, MOST_USED)
    return [
        KernelUse(float(compute_part), float(memory_part))
        for compute_part, memory_part in zip(compute, memory, strict=True)
    ]


def scaled(values: Floats, weights: Floats, mean: float, most: float) -> Floats:
    """Return the values times a factor, none above *most*, so that their weighted mean is *mean*."""
    low = 0.0
    high = 1e6 / float(values.max())
    for _ in range(100):
        factor = (low + high) / 2
        reached = float(np.minimum(values * factor, most) @ weights)
        low, high = (factor, high) if reached < mean else (low, factor)
    return np.minimum(values * high, most)
