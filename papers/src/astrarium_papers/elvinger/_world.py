"""The thesis's cluster, from what it prints: its clients, its path and how models on a GPU slow each other.

- Clients (section 4.3.6) sleep for an exponential time and then submit, which takes time, too. At a target of
  500 requests a second ResNet50's client achieved 433.34 (section 6.2.1), so that a round takes 0.31 ms
  besides sleeping. Placement policies are told the target.
- MAX_WAIT_TIME is 100 ms (section 4.3.3). An image has 3 x 224 x 224 numbers of 4 bytes, a text 512 tokens
  and their mask, 8 bytes each (section 4.6.2).
- The network takes a ping's 0.322 ms, and 8.7 ms for a batch of 16 images (section 4.6.2): the line through
  the two. Answers are labels.
- Interference: ResNet50 at 4 takes 8 ms beside AlexNet at 4 instead of 6.8 (section 6.2.1), when the two use
  0.83 of the SMs. Settled by us: a straight line from nothing to there, and where more SMs are asked for than
  there are, as many times as long. A replica with a share of the SMs asks for no more than its share; what
  the share itself costs is told by `share_factor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.placement.gpu_share import demand_at
from astrarium.placement.interference import SumPoint, Sums, Tenant
from astrarium.placement.path import Delay, Path, Payload
from astrarium.placement.problem import PlacedModel, PlacementGpu, PlacementRequests, Problem

IMAGE = 4 * 3 * 224 * 224
TEXT = 2 * 8 * 512
LANGUAGE = ("bert", "gpt2")
PING = round(0.322 * MILLISECOND)
PRINTED_TRANSFER = (16 * IMAGE, round(8.7 * MILLISECOND))
SUBMITTING = SECOND / 433.34 - SECOND / 500
WARMUP = 2 * SECOND
BESIDE = SumPoint(0.8333, 8.0 / 6.782)  # AlexNet and ResNet50 at 4


def path(problem: Problem, max_wait: Time = 100 * MILLISECOND) -> Path:
    size, took = PRINTED_TRANSFER
    payloads = {model.name: Payload(TEXT if model.name in LANGUAGE else IMAGE) for model in problem.models}
    network = Delay(PING, per_byte=(took - PING) / size)
    return Path(max_wait, transfer=network, reply=Delay(PING), payloads=payloads)


def achieved(target: float) -> float:
    """Return the requests a second that a client submits."""
    return SECOND / (SECOND / target + SUBMITTING)


def clients(problem: Problem, count: int, seed: int) -> PlacementRequests:
    """Return *count* requests of every model after the warm-up, at the rates that clients achieve."""
    arrivals: list[tuple[Time, int]] = []
    for model in problem.models:
        draw = stream(seed, "client", model.name).random
        at = 0.0
        counted = 0
        while counted < count:
            at += SUBMITTING - math.log1p(-draw()) * SECOND / model.rate
            counted += at >= WARMUP
            arrivals.append((round(at), model.index))
    arrivals.sort()
    return PlacementRequests(tuple(at for at, _ in arrivals), tuple(model for _, model in arrivals))


def poisson(problem: Problem, duration: Time, draw: Callable[[], float]) -> PlacementRequests:
    """Return requests at the models' rates, drawn by chance: *draw* gives uniform numbers in [0, 1)."""
    arrivals: list[tuple[Time, int]] = []
    for model in problem.models:
        at = 0.0
        while model.rate > 0:
            at -= math.log1p(-draw()) * SECOND / model.rate
            if at >= duration:
                break
            arrivals.append((round(at), model.index))
    arrivals.sort()
    return PlacementRequests(tuple(at for at, _ in arrivals), tuple(model for _, model in arrivals))


class SharedSms:
    """Models at work together take so many times as long as the SMs they ask for together make them."""

    def __init__(self, models: Sequence[PlacedModel]) -> None:
        self._models = {model.index: model for model in models}
        points = (SumPoint(0.0, 1.0), BESIDE, SumPoint(2.0, 2.0), SumPoint(4.0, 4.0))
        self._sums = Sums("sm_utilization", points)

    def slowdowns(self, gpu: PlacementGpu, tenants: Sequence[Tenant]) -> tuple[float, ...]:
        busy = [tenant for tenant in tenants if tenant.busy]
        pace = self._sums.at(math.fsum(self._sm_share(tenant) for tenant in busy)) if len(busy) > 1 else 1.0
        return tuple(pace if tenant.busy else 1.0 for tenant in tenants)

    def _sm_share(self, tenant: Tenant) -> float:
        used = demand_at(self._models[tenant.model], tenant.batch).sm_utilization
        return min(1.0 if used is None else used, tenant.share)
