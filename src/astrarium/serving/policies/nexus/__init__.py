"""Nexus plans batch sizes for each GPU every epoch; frontends spread requests over the replicas.

Shen et al., "Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis", SOSP 2019. Every epoch
the rates of the last one are packed onto the GPUs (`plan`). A frontend sends each request to one of
its model's replicas by weighted round robin; frontends know nothing of each other. A GPU takes its models
in turns, up to the planned batch of each, and gives up heads that would be late in the batch it is about to
run ("early drop"). It never waits for a batch to fill, nor for its duty cycle to end.

Settled by us: before any rate is known all models are taken to be equally popular, and the first plan from
measured rates is made after one second; the rate is the mean over the epoch; plans are made from scratch,
on the GPUs where the models were if possible; by default (`spread`) the plan is scaled up to use every GPU,
as in Symphony's comparison: a plan for exactly the rate has no room for chance, and drops over 1 % of
Poisson arrivals at nearly any rate. A replica's round-robin credit is counted relative to the largest
weight, so that none is sent a burst. Requests already bound to a GPU stay there when the plan changes.
A request's frontend follows from its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import DURATION_FORM, SECOND, Time, duration_in
from astrarium.serving.contract import Action, Event, RequestArrived, Setup
from astrarium.serving.policies import LengthsAside, NativeParameters, serving_policies
from astrarium.serving.policies._entries import Queue, largest_within
from astrarium.serving.policies._replicas import ReplicaScheduler
from astrarium.serving.policies.nexus.plan import PackingProfile, plan, settle
from astrarium.serving.state import ServingState

_FIRST_EPOCH = SECOND
_ENOUGH = 1 - 1e-9  # a credit of one, were it not for rounding


class Ring:
    """A ring is one frontend's weighted round robin over the replicas of one model."""

    def __init__(self, weights: Sequence[tuple[int, float]], start: int) -> None:
        largest = max(weight for _, weight in weights)
        self._gpus = [gpu for gpu, _ in weights]
        self._quanta = [weight / largest for _, weight in weights]
        self._credit = [0.0] * len(weights)
        self._next = start % len(weights)

    def pick(self) -> int:
        while True:
            place = self._next
            self._next = (place + 1) % len(self._gpus)
            self._credit[place] += self._quanta[place]
            if self._credit[place] >= _ENOUGH:
                self._credit[place] -= 1
                return self._gpus[place]


@serving_policies.register("nexus")
class Nexus(ReplicaScheduler):
    """Plan batch sizes for every GPU each epoch; spread requests over replicas in rotation."""

    native = "nexus"
    parameters: Parameters

    class Parameters(LengthsAside, frozen=True):
        epoch: Annotated[
            str, msgspec.Meta(description=f"how long a plan stands: {DURATION_FORM}, not zero")
        ] = "10s"
        reserve: Annotated[
            str, msgspec.Meta(description=f"what the plan keeps free of each SLO: {DURATION_FORM}")
        ] = "2ms"
        frontends: Annotated[
            int, msgspec.Meta(ge=1, description="how many frontends share the requests, uncoordinated")
        ] = 1
        spread: Annotated[
            bool, msgspec.Meta(description="use every GPU, not only as many as the planned rates need")
        ] = True

    def __init__(self, setup: Setup, parameters: Parameters) -> None:
        super().__init__(setup, parameters)
        self._reserve = duration_in("reserve", parameters.reserve)
        self._epoch = duration_in("epoch", parameters.epoch)
        if not self._epoch:
            raise InputError("epoch", parameters.epoch, f"{DURATION_FORM}, longer than zero")
        self._profiles = self._profiled()
        self._largest = {profile.model: profile.largest for profile in self._profiles}
        self._rates = [1.0 / SECOND] * len(setup.models)
        self._rates_known = False
        self._batches: list[dict[int, int]] = [{} for _ in setup.gpus]  # planned, by model
        self._rings: list[list[Ring]] = []  # by frontend and model
        self._counts = [0] * len(setup.models)
        self._began: Time = 0
        self._ends: Time = -1  # of the epoch; negative while nothing arrives
        if self._present:
            self._make_plan()

    def _profiled(self) -> list[PackingProfile]:
        """Return the models' profiles by name, so that the order in which models are listed is irrelevant."""
        profiles = []
        for model in sorted(self.setup.models, key=lambda model: model.name):
            room = model.slo - max(self._reserve, self._network.response)
            costs = self._costs[model.index]
            profiles.append(
                PackingProfile(model.index, model.slo, costs, max(1, largest_within(costs, room // 2)))
            )
        return profiles

    def native_parameters(self) -> NativeParameters:
        chosen = self.parameters
        integers = {
            "epoch": self._epoch,
            "reserve": self._reserve,
            "frontends": chosen.frontends,
            "spread": int(chosen.spread),
        }
        return NativeParameters(integers, {}, {"order": [profile.model for profile in self._profiles]})

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        if 0 <= self._ends <= now:
            self._end_epoch(now)
        for event in events:
            if type(event) is RequestArrived:
                self._counts[event.request.model] += 1
        yield from super().decide(now, events, state)
        if self._ends < 0 and any(self._counts):
            self._began = now
            self._ends = now + (self._epoch if self._rates_known else min(self._epoch, _FIRST_EPOCH))
            yield SetTimer(self._ends, "epoch")

    def _end_epoch(self, now: Time) -> None:
        """Plan anew with the rates of the epoch; a silent epoch changes nothing.

        The next epoch begins with the next request.
        """
        if any(self._counts):
            length = now - self._began
            self._rates = [max(1, count) / length for count in self._counts]
            self._rates_known = True
            self._counts = [0] * len(self._counts)
            if self._present:
                self._make_plan()
        self._ends = -1

    def _make_plan(self) -> None:
        spread = self.parameters.spread or not self._rates_known
        nodes = plan(self._profiles, self._rates, len(self._present), spread)
        before = {gpu: set(batches) for gpu, batches in enumerate(self._batches)}
        places = settle(nodes, self._present, before)
        self._batches = [places[gpu].batches() if gpu in places else {} for gpu in range(len(self._batches))]
        weights: list[list[tuple[int, float]]] = [[] for _ in self.setup.models]
        for gpu in sorted(places):
            for model, throughput in places[gpu].throughputs().items():
                weights[model].append((gpu, throughput))
        frontends = self.parameters.frontends
        self._rings = [
            [Ring(of_model, frontend * len(of_model) // frontends) for of_model in weights]
            for frontend in range(frontends)
        ]

    def regroup(self, now: Time, joined: Sequence[int]) -> None:
        self._make_plan()

    def route(self, model: int, request: int) -> int:
        frontend = _scattered(request) % len(self._rings) if len(self._rings) > 1 else 0
        return self._rings[frontend][model].pick()

    def gather(self, now: Time, gpu: int, model: int, queue: Queue) -> tuple[int, int]:
        costs = self._costs[model]
        waiting = len(queue)
        size = min(self._batches[gpu].get(model, self._largest[model]), waiting)
        given_up = 0
        while given_up < waiting and queue[given_up][0] < now + costs[size]:
            given_up += 1
            size = min(size, waiting - given_up)
        return given_up, size


def _scattered(number: int) -> int:
    """Return a 32-bit mix of an id, so that requests come to frontends as if by chance.

    An even spread over the frontends would coordinate them.
    """
    number = (number ^ number >> 16) * 0x7FEB352D & 0xFFFFFFFF
    number = (number ^ number >> 15) * 0x846CA68B & 0xFFFFFFFF
    return number ^ number >> 16
