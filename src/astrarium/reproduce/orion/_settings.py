"""What Orion's reproductions share: workloads, rates, systems, and what the paper left open.

The GPU is simulated kernel by kernel (native/gate/gpu_model.h); every launch asks the policy that the
preloaded library runs. Chosen by us:
- KERNELS: the set of workloads. `v100-like` is generated from what the paper prints. With `recorded`, which
  the environment variable ASTRARIUM_KERNELS can choose, clients get requests at rates that keep that GPU as
  busy, latency requests are CUDA graphs as serving on such GPUs needs them, and the figures have the models
  that were recorded.
- Streams, REEF and Orion run their clients as threads of one Python process, as the paper's did: one thread
  launches at a time. MPS and our own policy run processes. All of them but MPS put the latency client on a
  stream of high priority (the paper says so of Streams and Orion). A launch costs the CPU 5 us; with
  recordings of faster GPUs 20 us, which is what PyTorch takes there.
- Policies that need it are told how long a request takes alone, as Orion profiles it.
- Apollo's arrivals: those of the stream vgg19 (bursts of four, 19 requests/s, the busiest) of the DISB
  suite's trace, where the environment variable ASTRARIUM_APOLLO names the file; otherwise bursts like them.
  The paper does not say which stream it took.
- Orion's search for the SM threshold, between training jobs, lets iterations get longer by the 16 % that the
  paper reports.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from astrarium.core.units import MICROSECOND, Time
from astrarium.experiments.gate import Party, Sharing, bursty, poisson, recorded, uniform
from astrarium.workloads.kernel_sets import GENERATED, find, has
from astrarium.workloads.processes import Times

KERNELS = os.environ.get("ASTRARIUM_KERNELS", GENERATED)
APOLLO = "ASTRARIUM_APOLLO"
APOLLO_STREAM = "vgg19"
SEED = 1
LIMIT = 0.16

VISION = ("resnet50", "mobilenetv2", "resnet101")
MODELS = (*VISION, "bert", "transformer")
LABELS = {
    "resnet50": "ResNet50",
    "mobilenetv2": "MobileNetV2",
    "resnet101": "ResNet101",
    "bert": "BERT",
    "transformer": "Transformer",
}


class Rates(NamedTuple):
    """Table 3, requests a second: beside inference (uniform, Poisson) and beside training (Poisson)."""

    uniform: float
    poisson: float
    beside_training: float


TABLE3 = {
    "resnet50": Rates(80, 50, 15),
    "mobilenetv2": Rates(100, 65, 40),
    "resnet101": Rates(40, 25, 9),
    "bert": Rates(8, 5, 4),
    "transformer": Rates(20, 12, 8),
}
# Table 4: training iterations a second on a dedicated GPU, and beside inference under Orion.
TABLE4 = {
    "resnet50": (10.3, 7.45),
    "mobilenetv2": (12.5, 8.78),
    "resnet101": (6.3, 4.7),
    "bert": (4.91, 3.1),
    "transformer": (6.0, 3.9),
}

SYSTEMS: dict[str, Sharing] = {
    "Temporal": Sharing("temporal"),
    "Streams": Sharing("stream-priority", priority=True, one_interpreter=True),
    "MPS": Sharing("mps"),
    "REEF": Sharing("reef-n", priority=True, one_interpreter=True),
    "Orion": Sharing("orion", priority=True, one_interpreter=True),
    "Astrarium": Sharing("astrarium", priority=True),
}
COLORS = {
    "Ideal": "#666666",
    "Temporal": "#CC79A7",
    "Streams": "#56B4E9",
    "MPS": "#009E73",
    "Tick-Tock": "#E69F00",
    "REEF": "#D55E00",
    "Orion": "#0072B2",
    "Astrarium": "#000000",
}


def inference(model: str, arrivals: Times, latency: bool = True) -> Party:
    graph = latency and KERNELS != GENERATED
    return Party(model, find(KERNELS, model, "inference"), latency, arrivals, gap=_gap(), graph=graph)


def training(model: str, latency: bool = False) -> Party:
    return Party(model, find(KERNELS, model, "training"), latency, gap=_gap())


def _gap() -> Time:
    return 5 * MICROSECOND if KERNELS == GENERATED else 20 * MICROSECOND


def known(models: Iterable[str], purpose: str) -> list[str]:
    """Those that the set of kernels has."""
    return [model for model in models if has(KERNELS, model, purpose)]


def apollo(model: str, duration: Time) -> Times:
    path = os.environ.get(APOLLO)
    return recorded(path, APOLLO_STREAM, duration) if path else bursty(duration, SEED, model)


def apollo_note() -> str:
    if os.environ.get(APOLLO):
        return f"arrivals of the Apollo trace, stream {APOLLO_STREAM}"
    return f"bursts stand in for the Apollo trace: {APOLLO} names no file"


def busy_as(rate: float, model: str) -> float:
    """The rate that keeps the GPU as busy as the paper's does a V100."""
    slower = find(GENERATED, model, "inference").duration / find(KERNELS, model, "inference").duration
    return rate * slower


def poisson_beside_training(model: str, duration: Time) -> Times:
    return poisson(busy_as(TABLE3[model].beside_training, model), duration, SEED, model)


def poisson_beside_inference(model: str, duration: Time, name: str = "") -> Times:
    return poisson(busy_as(TABLE3[model].poisson, model), duration, SEED, name or model)


def uniform_beside_inference(model: str, duration: Time) -> Times:
    return uniform(busy_as(TABLE3[model].uniform, model), duration, SEED, f"{model}, best effort")
