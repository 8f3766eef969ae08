"""How scarce GPUs are, and what follows for a line of requests. All from measured rates, 20 times a second.

Waiting for one more request saves its share of what a launch costs whatever its size, and loses the time in
between. With requests at a rate r, batches of b and a fixed cost of f, it pays by itself as soon as r f / b
is above one: the next batch would start before the fixed cost of this one is paid. That is the `gain`. Below
one, waiting is a bet that a GPU will be there later, and the risk of that bet is the `noise`: how far demand
strays from its mean, in which bursts and small clusters count. While GPUs are plenty waiting costs nothing:
it makes large batches and leaves GPUs idle for others.

The numbers were chosen with part of Symphony's Figure 7 in view; docs/astrarium.md says which, and how they
do on settings that nobody had looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from astrarium.core.units import MILLISECOND, Time

RESERVE = 2.0  # standard deviations of demand: the staffing rule of many-server queues
PLENTY, SCARCE = 0.7, 0.9  # demand with its reserve, as a share of the GPUs
NOT_WORTH, WORTH = 4.5, 7.0  # gain over noise under which one does not wait, and from which one does
QUIET, LOUD = 0.03, 0.05  # noise up to which the bet is safe whatever the gain, and from which it is not
PATIENCE = 0.8  # of the way to where nobody could join any more; the rest is time to find a GPU
BURST, LARGE_BURST = 3.5, 4.5  # gain within a burst at which one does not wait for its end, and does
SHORTEST: Time = 5 * MILLISECOND  # that a burst is taken to last
PAYS, PAYS_WELL = 0.6, 1.0  # the gain that, while it is quiet, is worth all of the way and all of the target
SURE, SUREST = 1.5, 2.5  # the gain from which more of the way is waited, up to all of it
SAVES, SAVES_MUCH, SAVES_MOST = 0.4, 0.6, 0.9  # the gain when too many are lost to fear the noise
ENOUGH, HOLD = 0.85, 0.7  # shares of the target, see `Stance`
TOLERABLE, OVERLOAD = 0.02, 0.05  # shares of requests lost
CHEAP, DEAR = 1.0, 3.0  # what wasted GPU time is worth in lost requests while GPUs are scarce,
WEAK, STRONG = 0.5, 1.0  # by the gain


class Demand(NamedTuple):
    """What a line asks of the GPUs."""

    rate: float  # requests per nanosecond
    dispersion: float  # of their arrivals: variance over mean
    target: int  # the batch size that its rate and objective allow
    time: Time  # of a batch of that size
    fixed: Time  # of which a launch costs whatever its size
    slo: Time

    @property
    def each(self) -> float:
        """GPU time of one request."""
        return self.time / self.target

    @property
    def gain(self) -> float:
        return self.rate * self.fixed / (self.target + 1)

    @property
    def burst_gain(self) -> float:
        """The same within a burst: with each request come as many more as arrivals are dispersed."""
        window = max(self.slo - self.time, SHORTEST)
        rate = self.rate + max(0.0, self.dispersion - 1.0) / window
        return rate * self.fixed / (self.target + 1)


class Climate(NamedTuple):
    scarcity: float  # 0: GPUs are plenty, 1: every bit of their time counts
    overload: float  # 0: at most a tolerable share of requests is lost, 1: many are
    noise: float  # standard deviation of demand, as a share of the GPUs

    @property
    def quiet(self) -> float:
        return 1.0 - ramp(self.noise, QUIET, LOUD)


CALM = Climate(0.0, 0.0, 0.0)


class Stance(NamedTuple):
    """How a line behaves: it waits a share of the way; its candidate is no smaller than `hold` if it can be
    helped; with a GPU at hand, a batch of `enough` needs nobody given up; wasted GPU time has a price."""

    patience: float
    hold: int
    enough: int
    price: float


def climate(demands: Iterable[Demand], gpus: int, lost: float) -> Climate:
    mean = variance = 0.0
    for demand in demands:
        mean += demand.rate * demand.each
        variance += demand.each * demand.each * demand.dispersion * demand.rate / demand.slo
    mean, noise = mean / max(1, gpus), math.sqrt(variance) / max(1, gpus)
    return Climate(ramp(mean + RESERVE * noise, PLENTY, SCARCE), ramp(lost, TOLERABLE, OVERLOAD), noise)


def stance(demand: Demand, climate: Climate) -> Stance:
    insist = max(climate.overload, climate.quiet * ramp(demand.gain, PAYS, PAYS_WELL))
    return Stance(
        patience(demand, climate),
        share(demand.target, HOLD, insist),
        share(demand.target, ENOUGH, insist),
        (CHEAP + (DEAR - CHEAP) * ramp(demand.gain, WEAK, STRONG)) * climate.scarcity,
    )


def patience(demand: Demand, climate: Climate) -> float:
    """The share of the way to Symphony's frontrun that a candidate waits."""
    gain, calm, noise, quiet = demand.gain, 1.0 - climate.overload, climate.noise, climate.quiet
    burst = ramp(demand.burst_gain, BURST, LARGE_BURST)
    bet = max(ramp(gain, NOT_WORTH * noise, WORTH * noise), quiet, burst)
    worth = calm * bet + climate.overload * ramp(gain, SAVES, SAVES_MUCH)
    in_overload = climate.overload * ramp(gain, SAVES, SAVES_MOST)
    farther = max(in_overload, quiet * ramp(gain, PAYS, PAYS_WELL), ramp(gain, SURE, SUREST))
    most = PATIENCE + (1.0 - PATIENCE) * farther
    return most * (1.0 - climate.scarcity * (1.0 - worth))


def share(target: int, part: float, insist: float) -> int:
    """A part of the target, nearly all of a small one, and all of it where one must insist."""
    missing = (1.0 - part) * (1.0 - insist)
    return target - int(missing * max(0, target - 2) + 0.3)


def ramp(value: float, low: float, high: float) -> float:
    """0 up to *low*, 1 from *high* on, a straight line between."""
    if value <= low:
        return 0.0
    return (value - low) / (high - low) if value < high else 1.0
