"""Pressure sets a price on GPU time, and how long a queue of requests waits for more of them at that price.

All of it follows from measured rates, 20 times a second. A batch of b takes alpha b + f on a GPU: f is what a
launch costs whatever its size. Requests come at a rate r, so a queue whose batches wait w sends batches of
1 + r w. Waiting costs latency and saves GPU time. If GPU time has a *price* (the waiting of a request that a
unit of it is worth), the cheapest batch is sqrt(price f r): the economic order quantity of inventory theory.
The price is the lowest at which mean demand with two standard deviations fits in the GPUs. So nobody waits
while GPUs are plenty, and queues that gain much by batching wait first.

Where no price makes demand fit, latency is not what holds a queue back but risk: a GPU that is idle now may
be taken later. One more request comes after 1 / r and saves f / b: the *gain* r f / b of waiting for it falls
as the batch grows. A queue waits until its gain has fallen to a multiple of the *noise*, the standard
deviation of demand as a share of the GPUs: bursts raise it, and many GPUs lower it. Where far more than the
target would be worth waiting for, there is less *doubt*: more of the way is waited, more of the target asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from astrarium.core.quantities import FOREVER, Time

RESERVE = 2.0  # standard deviations of demand: the staffing rule of many-server queues
RISK = 7.0  # the gain over the noise at which waiting ends; goodput is much the same from 4 to 10
SAVES = 0.8  # the gain at which it ends in overload: somebody is lost in any case, so noise is no risk
REST = 0.2  # of the way to where nobody could join any more: the time left to find a GPU
# shares of the target, see `Stance`
HOLD = 0.7
ENOUGH = 0.85
SURE = 3.0  # how many times the target must be worth waiting for until there is less doubt
# shares of requests lost
TOLERABLE = 0.02
OVERLOAD = 0.05
WASTE = 2.0  # what wasted GPU time is worth in lost requests where no price makes demand fit
HALVINGS = 24  # of the range in which the price is searched for


class Demand(NamedTuple):
    """A queue's demand is what it asks of the GPUs."""

    rate: float  # requests per nanosecond
    dispersion: float  # of their arrivals: variance over mean
    target: int  # the batch size that its rate and objective allow
    time: Time  # of a batch of that size
    fixed: Time  # of which a launch costs whatever its size
    slo: Time

    def size(self, price: float) -> float:
        """Return the economic batch size at a price of GPU time."""
        return min(max(1.0, math.sqrt(price * self.fixed * self.rate)), self.target)

    def request_time(self, price: float) -> float:
        """Return the GPU time of one request in batches of the economic size."""
        return (self.time - self.fixed) / self.target + self.fixed / self.size(price)

    @property
    def company(self) -> float:
        """Return the rate at which others come once a request is there.

        With it come as many more as arrivals are dispersed, within its objective; on the mean, half of those
        come after it.
        """
        return self.rate + max(0.0, self.dispersion - 1.0) / (2.0 * self.slo)

    def wait_for(self, size: float) -> Time:
        """Return how long it takes until *size* requests have come, the first of them at once."""
        return int(min((size - 1.0) / self.company, FOREVER)) if size > 1.0 else 0

    @property
    def highest_price(self) -> float:
        """Return the price from which on the queue's batches are of the target size."""
        launches = self.fixed * self.rate
        return self.target * self.target / launches if launches > 0.0 else 0.0


class Climate(NamedTuple):
    """The climate is what all queues have in common: how scarce GPUs are, and how much demand varies."""

    price: float  # of GPU time; 0: GPUs are plenty; infinite: no waiting makes demand fit
    overload: float  # 0: at most a tolerable share of requests is lost, 1: many are
    noise: float  # standard deviation of demand in batches of the target size, as a share of the GPUs

    @property
    def scarcity(self) -> float:
        """Return the price as a share: 0 while GPUs are plenty, 1 where no price makes demand fit."""
        return self.price / (1.0 + self.price) if self.price < math.inf else 1.0


CALM = Climate(0.0, 0.0, 0.0)


class Stance(NamedTuple):
    """A stance says how a queue behaves, until rates are looked at again.

    Its candidate waits for `wait`, and no more than a share of the way to Symphony's frontrun; it is no
    smaller than `hold` if it can be helped; with a GPU at hand, a batch of `enough` needs nobody given up;
    wasted GPU time has a price in lost requests.
    """

    wait: Time
    patience: float
    hold: int
    enough: int
    price: float


def climate(demands: Sequence[Demand], gpus: int, lost: float) -> Climate:
    gpus = max(1, gpus)
    highest = max((demand.highest_price for demand in demands), default=0.0)
    _, deviation = load(demands, highest)
    return Climate(lowest_price(demands, highest, gpus), ramp(lost, TOLERABLE, OVERLOAD), deviation / gpus)


def lowest_price(demands: Sequence[Demand], highest: float, gpus: int) -> float:
    """Return the lowest price of GPU time at which demand and its reserve fit in the GPUs; else infinity."""
    if fits(demands, 0.0, gpus):
        return 0.0
    if not fits(demands, highest, gpus):
        return math.inf
    low = 0.0
    high = highest
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if fits(demands, middle, gpus) else (middle, high)
    return high


def fits(demands: Sequence[Demand], price: float, gpus: int) -> bool:
    mean, deviation = load(demands, price)
    return mean + RESERVE * deviation <= gpus


def load(demands: Sequence[Demand], price: float) -> tuple[float, float]:
    """Return mean and standard deviation of the GPUs that demand keeps busy at a price of GPU time."""
    mean = variance = 0.0
    for demand in demands:
        request_time = demand.request_time(price)
        mean += demand.rate * request_time
        variance += request_time * request_time * demand.dispersion * demand.rate / demand.slo
    return mean, math.sqrt(variance)


def stance(demand: Demand, climate: Climate, few_gpus: bool = False) -> Stance:
    """Return how a queue should behave; with *few_gpus* it also waits while GPUs are plenty."""
    worth = worthwhile(demand, climate)
    doubt = (1.0 - climate.overload) * min(1.0, SURE * demand.target / worth if worth > 0.0 else 1.0)
    return Stance(
        FOREVER if few_gpus and climate.price < math.inf else wait(demand, climate, worth),
        1.0 - REST * doubt,
        share(demand.target, HOLD, doubt),
        share(demand.target, ENOUGH, doubt),
        WASTE * climate.scarcity,
    )


def worthwhile(demand: Demand, climate: Climate) -> float:
    """Return the batch size at which the gain of waiting has fallen to its risk."""
    risk = (1.0 - climate.overload) * RISK * climate.noise + climate.overload * SAVES
    launches = demand.company * demand.fixed
    return launches / risk if risk > 0.0 else math.inf if launches > 0.0 else 0.0


def wait(demand: Demand, climate: Climate, worth: float) -> Time:
    """Return how long a candidate waits: until its size is economic, no longer than is worth the risk."""
    if climate.price < math.inf:
        worth = min(worth, demand.size(climate.price))
    return demand.wait_for(worth)


def share(target: int, part: float, doubt: float) -> int:
    """Return a part of the target: nearly all of a small one, and all of it where there is no doubt."""
    missing = (1.0 - part) * doubt
    return target - int(missing * max(0, target - 2) + 0.3)


def ramp(value: float, low: float, high: float) -> float:
    """Return 0 up to *low*, 1 from *high* on, and a straight line between."""
    if value <= low:
        return 0.0
    return (value - low) / (high - low) if value < high else 1.0
