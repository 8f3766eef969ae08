"""What Orion's reproductions share: workloads, rates, systems, and what the paper left open.

The GPU is simulated kernel by kernel (native/gate/simulation/gpu_model.h); every launch asks the policy that
the preloaded library runs. Chosen by us:
- Workloads were recorded on an H200. Requests come at rates that keep their client as busy as the paper's
  was on a V100: at the rates of Table 3, or Apollo's own, this GPU would be all but idle. So a third of the
  seconds is enough for as many requests. Latency requests are CUDA graphs, as serving on such GPUs needs
  them.
- Rows named V100-like have workloads that are generated from what the paper prints of its own GPU.
  ASTRARIUM_KERNELS=v100-like in the environment makes everything, claims and pictures too, from these.
- Streams, REEF and Orion run their clients as threads of one Python process, as the paper's did: one thread
  launches at a time. MPS and our own policy run processes. All of them but MPS put the latency client on a
  stream of high priority (the paper says so of Streams and Orion). A launch costs the CPU 5 us; with
  recordings 20 us, which is what PyTorch takes there at its best.
- Between two kernels of a stream 2.5 us pass with recordings: the median of what they lack of their workloads
  measured alone (astrarium/sharing).
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

import numpy as np

from astrarium.core.errors import InputError, one_of
from astrarium.core.processes import Times
from astrarium.core.quantities import MICROSECOND, SECOND, Time
from astrarium_papers.client_arrivals import bursty, poisson, recorded, uniform
from astrarium_papers.gate_simulation import Party, Sharing
from astrarium_papers.kernels import GENERATED, RECORDED, find, has

KERNELS = "ASTRARIUM_KERNELS"
APOLLO = "ASTRARIUM_APOLLO"
APOLLO_STREAM = "vgg19"
APOLLO_LENGTH = 29 * SECOND
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


class Kernels(NamedTuple):
    """A set of workloads, and what running them costs besides their kernels."""

    name: str
    gap: Time
    between: Time
    graphs: bool  # latency requests are
    shorter: float  # runs, for as many requests

    def seconds(self, paper: float) -> float:
        """Return how long an experiment is simulated that is so long on the paper's GPU."""
        return paper * self.shorter

    def inference(self, model: str, arrivals: Times, latency: bool = True) -> Party:
        graph = latency and self.graphs
        trace = find(self.name, model, "inference")
        return Party(model, trace, latency, arrivals, gap=self.gap, graph=graph, between=self.between)

    def training(self, model: str, latency: bool = False) -> Party:
        trace = find(self.name, model, "training")
        return Party(model, trace, latency, gap=self.gap, between=self.between)

    def known(self, models: Iterable[str], purpose: str) -> list[str]:
        """Return the models that are in the set."""
        return [model for model in models if has(self.name, model, purpose)]

    def faster(self, model: str, latency: bool = True) -> float:
        """Return how much shorter a request is than on the paper's GPU; launches may limit one without a
        graph."""
        trace = find(self.name, model, "inference")
        took = trace.duration + self.between * len(trace.launches)
        launched = 0 if latency and self.graphs else self.gap * len(trace.launches)
        return find(GENERATED, model, "inference").duration / max(took, launched)

    def apollo(self, model: str, duration: Time) -> Times:
        """Return arrivals as dense for this GPU as the trace is for the paper's."""
        faster = self.faster(model)
        times = own_pace(model, round(duration * faster))
        return (times / faster).astype(np.int64)

    def poisson_beside_training(self, model: str, duration: Time) -> Times:
        return poisson(TABLE3[model].beside_training * self.faster(model), duration, SEED, model)

    def poisson_beside_inference(self, model: str, duration: Time) -> Times:
        return poisson(TABLE3[model].poisson * self.faster(model), duration, SEED, model)

    def best_effort_poisson(self, model: str, duration: Time) -> Times:
        rate = TABLE3[model].poisson * self.faster(model, latency=False)
        return poisson(rate, duration, SEED, f"{model}, best effort")

    def best_effort_uniform(self, model: str, duration: Time) -> Times:
        rate = TABLE3[model].uniform * self.faster(model, latency=False)
        return uniform(rate, duration, SEED, f"{model}, best effort")


V100 = Kernels(GENERATED, gap=5 * MICROSECOND, between=0, graphs=False, shorter=1.0)
H200 = Kernels(RECORDED, gap=20 * MICROSECOND, between=round(2.5 * MICROSECOND), graphs=True, shorter=1 / 3)


def _chosen(name: str) -> Kernels:
    sets = {kernels.name: kernels for kernels in (V100, H200)}
    if name not in sets:
        raise InputError(KERNELS, name, one_of(list(sets), name))
    return sets[name]


CHOSEN = _chosen(os.environ.get(KERNELS, RECORDED))


def own_pace(model: str, duration: Time) -> Times:
    """Return Apollo's arrivals as they came; the trace begins anew where it ends."""
    path = os.environ.get(APOLLO)
    if not path:
        return bursty(duration, SEED, model)
    once = recorded(path, APOLLO_STREAM, APOLLO_LENGTH)
    rounds = [once + start for start in range(0, duration, APOLLO_LENGTH)]
    times: Times = np.concatenate(rounds)
    return times[times < duration]


def apollo_note() -> str:
    if os.environ.get(APOLLO):
        return f"arrivals of the Apollo trace, stream {APOLLO_STREAM}"
    return f"bursts stand in for the Apollo trace: {APOLLO} names no file"
