"""The same requests, of which more or less is known on arrival: a distribution, the size, or both.

Arrivals and true times of a case are drawn once. What differs is what a policy is told of a request:

- `of_model`: nothing; the times of all requests are one distribution.
- `of_application`: which application it comes from, each with its distribution. This is what Orloj knows.
- `given_length`: its length, too, which explains a share of what its time has of its own. The lengths within
  an application are cut into PARTS equal parts, and an application and a part are one application to the
  policy: its distribution is that of the times given such a length.
- `of_size`: its own time, as a length in microseconds, in a profile by length.

How a length explains a share s of a time: the place of the time in the distribution of its application is a
standard normal score z (the logarithm of a lognormal time, and a normal time, shifted and scaled), and the
length has the score sqrt(s) z + sqrt(1 - s) e, where e is a normal score that has nothing to do with the
time. So s is the share of the variance of z that is known on arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from astrarium.core.arrivals import Arrivals, Ints
from astrarium.core.distributions import Distribution, Samples
from astrarium.core.profiles import Application, ByLength, Dynamic, Profile
from astrarium.core.quantities import MICROSECOND, Duration
from astrarium.core.random_streams import stream
from astrarium.serving.level import serve
from astrarium.serving.record import ServingRecord
from astrarium.serving.scenario import Scenario, build

PARTS = 8  # that the lengths of an application are cut into
BUCKETS = 32  # of sizes
HISTORY = 1000  # times known beforehand, of each application and part, as scenarios have it by default
SPREAD_SAMPLES = 20_000
_STANDARD = NormalDist()

Indices = npt.NDArray[np.int64]


def run(told: Scenario, arrivals: Arrivals) -> ServingRecord:
    return serve(told, build.setup(told), arrivals)


def of_application(case: Scenario, arrivals: Arrivals) -> ServingRecord:
    return run(case, arrivals)


def of_model(case: Scenario, arrivals: Arrivals) -> ServingRecord:
    profile = dynamic(case)
    times = profile.mixture().sample(stream(case.seed, "times before", "all"), HISTORY)
    told = msgspec.structs.replace(profile, applications={"all": Application(_samples(times))})
    return run(with_profile(case, told), replace(arrivals, application=np.zeros_like(arrivals.application)))


def of_size(case: Scenario, arrivals: Arrivals) -> ServingRecord:
    """Run with every request's own time known; the profile has the range of the times that come."""
    length = -(-arrivals.work // MICROSECOND)
    told = with_profile(case, surface(dynamic(case), length, case.models["model"].max_batch))
    return run(
        told,
        Arrivals(
            arrivals.time,
            arrivals.model,
            application=np.zeros_like(arrivals.application),
            work=np.zeros_like(arrivals.work),
            profiled=np.zeros_like(arrivals.profiled),
            length=length.astype(np.int32),
        ),
    )


def surface(profile: Dynamic, length: Indices, most: int) -> ByLength:
    """Return what batches take whose longest request has so many microseconds, for even steps of them."""
    steps = np.unique(np.linspace(length.min(), length.max(), BUCKETS).round().astype(int)).tolist()
    return ByLength(
        {
            step: {size: Duration(profile.batch_time(size, step * MICROSECOND)) for size in (1, most)}
            for step in steps
        }
    )


def given_length(case: Scenario, arrivals: Arrivals, share: float) -> ServingRecord:
    profile = dynamic(case)
    parts = dict[str, Application]()
    application = np.empty_like(arrivals.application)
    for place, (name, known) in enumerate(profile.applications.items()):
        mine = arrivals.application == place
        chance = stream(case.seed, "lengths", name)
        application[mine] = len(parts) + part_of(known.time, arrivals.work[mine], share, chance)
        for number, times in enumerate(_history(known.time, share, stream(case.seed, "times before", name))):
            parts[f"{name}, part {number}"] = Application(_samples(times), known.share / PARTS)
    told = msgspec.structs.replace(profile, applications=parts)
    return run(with_profile(case, told), replace(arrivals, application=application))


def part_of(time: Distribution, times: Ints, share: float, chance: np.random.Generator) -> Indices:
    """Return which part of the lengths of an application each request's own falls in."""
    noise = chance.normal(0, 1, len(times))
    lengths = math.sqrt(share) * scores(time, times) + math.sqrt(1 - share) * noise
    places = [_STANDARD.cdf(length) for length in lengths.tolist()]
    parts: Indices = np.minimum((PARTS * np.array(places)).astype(np.int64), PARTS - 1)
    return parts


def scores(time: Distribution, times: Ints) -> npt.NDArray[np.float64]:
    """Return the standard normal scores of times in their distribution."""
    tail = 1e-9
    chances = (min(max(time.cdf(one), tail), 1 - tail) for one in times.tolist())
    return np.array([_STANDARD.inv_cdf(chance) for chance in chances])


def _history(time: Distribution, share: float, chance: np.random.Generator) -> Iterator[Indices]:
    """Yield, for each part, times of requests whose lengths fell in it."""
    times = time.sample(chance, PARTS * HISTORY)
    parts = part_of(time, times, share, chance)
    yield from (times[parts == part] for part in range(PARTS))


def _samples(times: Ints) -> Samples:
    return Samples(tuple(map(Duration, np.sort(times).tolist())))


def dynamic(case: Scenario) -> Dynamic:
    profile = case.models["model"].profile
    assert isinstance(profile, Dynamic)
    return profile


def with_profile(case: Scenario, profile: Profile) -> Scenario:
    model = msgspec.structs.replace(case.models["model"], profile=profile)
    return msgspec.structs.replace(case, models={"model": model})


def spreads(profile: Dynamic) -> tuple[float, float]:
    """Return the standard deviation over the mean: of all times, and the same within an application."""
    chance = stream(0, "spread")
    parts = profile.applications.values()
    times = [part.time.sample(chance, SPREAD_SAMPLES) for part in parts]
    shares = np.array([part.share for part in parts]) / sum(part.share for part in parts)
    means = np.array([one.mean() for one in times])
    variances = np.array([one.var() for one in times])
    overall = float(shares @ means)
    variance = float(shares @ (variances + (means - overall) ** 2))
    return math.sqrt(variance) / overall, float(shares @ (np.sqrt(variances) / means))
