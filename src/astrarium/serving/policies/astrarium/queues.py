"""A queue holds requests that take alike times, and chooses the batch that would leave next.

Lookahead decides which heads to give up for a batch that has its GPU, by the losses at the next grants.
Serving every request that can still be saved may leave a small batch, and those behind it too late for the
next GPU. So every number of heads to give up is tried, the next grants are simulated with evenly spaced
arrivals, and the choice that loses the fewest requests is taken. A small batch also wastes GPU time that
other queues may need: that time has a price, in requests, while GPUs are scarce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from astrarium.core.quantities import FOREVER, Time
from astrarium.serving.contract import ModelSpec, Network, Request
from astrarium.serving.policies._queue import Backlog, ModelQueue
from astrarium.serving.policies._times import LearntTimes
from astrarium.serving.policies.astrarium import pressure
from astrarium.serving.policies.astrarium.groups import SAFE

MOST_GIVEN_UP = 24  # heads at once


class Prospect(NamedTuple):
    """A queue expects *rate* requests per nanosecond; a batch of *enough* needs nobody given up.

    *price* is that of wasted GPU time, in requests.
    """

    rate: float
    enough: int
    target: int  # the batch size at which GPU time is well used
    price: float
    slo: Time


def give_up(
    backlog: Backlog,
    prospect: Prospect,
    now: Time,
    free: Time,
    hopeless: int,
    grants: Callable[[int], Sequence[Time]],
) -> tuple[int, int]:
    """Return (heads to drop, batch size) of a backlog: its first *hopeless* are lost, at least one is not.

    *grants(size)* tells when the queue may expect a GPU again if a batch of that size leaves now.
    """
    waiting = len(backlog.deadlines)
    wanted = min(prospect.enough, waiting - hopeless)
    best = (hopeless, backlog.fitting(hopeless, now, free))
    least = -1.0
    if best[1] >= wanted:
        return best
    for head in range(hopeless, min(hopeless + MOST_GIVEN_UP + 1, waiting)):
        size = backlog.fitting(head, now, free)
        lost = losses(backlog, prospect, now, head + size, grants(size))
        cost = head - hopeless + prospect.price * waste(backlog, prospect.target, size) + lost
        if least < 0 or cost < least - 1e-9:
            best = (head, size)
            least = cost
        if size >= wanted or head + size >= waiting:
            break
    return best


def waste(backlog: Backlog, target: int, size: int) -> float:
    """Return the GPU time that a batch takes beyond its requests' time at the target size, in requests."""
    return backlog.latency[size] * target / backlog.latency[target] - size


def losses(backlog: Backlog, prospect: Prospect, now: Time, first: int, grants: Sequence[Time]) -> int:
    """Return the requests lost over the next grants if each drops those in the way of an ample batch."""
    left = len(backlog.deadlines) - first
    lost = taken = 0
    for then in grants:
        present = left + int(prospect.rate * (then - now))
        head = taken
        while head < present:
            size = min(prospect.enough, present - head, backlog.largest)
            if backlog.finish(size, now, then) <= due(backlog, prospect, now, first, left, head):
                break
            head += 1
        lost += max(0, head - taken)
        if head >= present:
            taken = max(taken, present)
            continue
        deadline = due(backlog, prospect, now, first, left, head)
        taken = head + backlog.grown(1, deadline, present - head, now, then)
    return lost


def due(backlog: Backlog, prospect: Prospect, now: Time, first: int, left: int, place: int) -> Time:
    """Return the deadline of a request that waits, or of one that will have come by then."""
    if place < left:
        return backlog.deadlines[first + place]
    return now + int((place - left + 1) / prospect.rate) + prospect.slo


class RequestQueue(ModelQueue):
    """A request queue's candidate is a batch worth a launch.

    Heads that stand in its way are not given up before there is a GPU: until then they wait before `first`.
    """

    def __init__(self, model: ModelSpec, network: Network, parameters: Any) -> None:
        super().__init__(model, network, "window")
        self.first = 0  # where the candidate begins
        self._as_of: Time = -1  # when the candidate was chosen
        self._patience = parameters.patience
        self._patient = parameters.lookahead
        self._few_gpus = parameters.prefer == "few-gpus"
        self.adapt(pressure.Demand(0.0, 1.0, self._target, 0, 0, 1), pressure.CALM)

    def gather(self, now: Time, gpu_free: Time) -> list[Request]:
        """Choose the candidate; return the requests that are lost in any case."""
        self.first = 0
        self._as_of = max(now, gpu_free)
        self.size = size = min(len(self.deadlines), self.backlog.largest)
        if not size or self.deadlines[0] >= self.backlog.finish(size, now, gpu_free):
            return []  # all together, as most often: fewer would not end later, so nothing to search for
        return self._choose(now, gpu_free)

    def _choose(self, now: Time, gpu_free: Time) -> list[Request]:
        before, self.size = self.backlog.gather_window(self.stance.hold, now, gpu_free)
        if not before:  # nobody is in the way, so nobody is lost
            return []
        if not self._patient:
            return self._cut(before)
        if not self.size:
            before, self.size = self.backlog.gather_fcfs(self.stance.hold, now, gpu_free)
        lost = self.backlog.hopeless(now, gpu_free)
        self.first = before - lost
        return self._cut(lost)

    def plan_with(self, latency: Sequence[Time]) -> None:
        """Plan with other batch times, which make another target."""
        self.estimate(latency)
        known = self.meter.window()[0]
        self._target = self._staggered_target() if known else min(self._target, self.backlog.largest)

    def latest(self) -> Time:
        return self.deadlines[self.first] - self.latency[self.size]

    def settled(self, now: Time, free: Time) -> bool:
        """Whether the candidate was chosen just now, for this GPU, and is large enough."""
        if self.first or not self._as_of == now >= free:
            return False
        return self.size >= self.stance.enough or self.size == len(self.deadlines)

    def settle(self, now: Time, free: Time, grants: Callable[[int], Sequence[Time]]) -> list[Request]:
        """Fix the batch that leaves; return the requests that it gives up."""
        hopeless = self.backlog.hopeless(now, free)
        self.first = 0
        self.size = 0
        if hopeless < len(self.deadlines):
            hopeless, self.size = give_up(self.backlog, self._prospect(), now, free, hopeless, grants)
        return self._cut(hopeless)

    def demand(self, now: Time) -> pressure.Demand:
        """Return what the queue asks of the GPUs, by the rates measured until now."""
        self.roll(now)
        time = self.latency[self._target]
        fixed = self._fixed()
        rate = self.meter.rate()
        dispersion = self.meter.dispersion()
        return pressure.Demand(rate, dispersion, self._target, time, fixed, self.model.slo)

    def adapt(self, demand: pressure.Demand, climate: pressure.Climate) -> None:
        self.stance = pressure.stance(demand, climate, self._few_gpus)
        if self._patience is not None:
            self.stance = self.stance._replace(wait=FOREVER, patience=self._patience)

    def opens(self) -> Time:
        """Return when the candidate stops waiting for further requests."""
        if self.first:
            return -FOREVER  # somebody is about to be lost: any GPU will do
        arrived = self.requests[0].arrival
        return arrived + min(self.stance.wait, int(self.stance.patience * (self.frontrun() - arrived)))

    def _prospect(self) -> Prospect:
        rate = self.meter.rate()
        stance = self.stance
        return Prospect(rate, stance.enough, self._target, stance.price, self.model.slo)

    def _fixed(self) -> Time:
        """Return what a launch costs whatever its size: the line through batches of 1 and 2, at 0."""
        if self.backlog.largest < 2:
            return self.latency[1]
        return max(0, 2 * self.latency[1] - self.latency[2])


class DynamicQueue(RequestQueue):
    """A queue of a dynamic model knows the applications of its requests, and what a batch of them takes."""

    def __init__(self, model: ModelSpec, network: Network, parameters: Any, times: LearntTimes) -> None:
        super().__init__(model, network, parameters)
        self._times = times
        self._members: list[int] = []  # places of those who leave; none: the first ones
        self._takes: Time = 0  # what those are planned with

    def choose(self, now: Time, free: Time) -> None:
        """Choose the members of the batch: the first request, and all that can join and keep its deadline.

        If it is too late for the first one by the times of its application, the batch stays what it was.
        """
        self._members = []
        self._takes = 0
        together: list[float] = []
        for place, request in enumerate(self.requests):
            joined = self._times.joined(together, request.application)
            takes = self._times.kept(joined, len(self._members) + 1, SAFE)
            if self._fits(takes, now, free) and takes - self._takes <= self._alone(request):
                together = joined
                self._takes = takes
                self._members.append(place)
            if len(self._members) in (0, self.model.max_batch):
                break
        self.size = len(self._members) or self.size

    def planned(self) -> Time:
        return self._takes if self._members else super().planned()

    def pop_batch(self) -> list[Request]:
        if not self._members:
            return super().pop_batch()
        batch = [self.requests[place] for place in self._members]
        for place in reversed(self._members):
            del self.requests[place], self.deadlines[place]
        self._members = []
        return batch

    def _fits(self, takes: Time, now: Time, free: Time) -> bool:
        start = max(now + self._network.delay(len(self._members) + 1), free)
        return start + takes <= self.deadlines[0]

    def _alone(self, request: Request) -> Time:
        return self._times.kept(self._times.joined([], request.application), 1, SAFE)
