"""The workloads of Themis (Mahajan et al., NSDI 2020) are drawn anew, from what it prints.

Printed (section 2.2): 85 apps of a hyper-parameter tuner in two weeks; one in ten has a single job, others
have up to 100, with a median of 75; half of the tasks take longer than 3.75 hours, half of the apps more than
11.5 GPU-days, many ten times more or less; about 50 GPUs are wanted on average. Jobs have 1 or 2 GPUs.

Workload 1, `from_philly`: jobs of a virtual cluster that come within two minutes of each other and want as
many GPUs are a sweep; ten or more make an app. The two weeks with the most sweeps of the six richest clusters
are laid over one another; 77 sweeps with the most jobs and 8 jobs of their own are taken.

Workload 1, `parametric`: jobs of an app from a triangular distribution whose median, with the single jobs,
is 75; tasks lognormal. Inferred, from the sweeps above: gaps between apps vary 1.6 times as much as
exponential ones; jobs of an app are alike (a standard deviation of 0.5 of the logarithm, of 1.6 over all).
With unlike ones the median app would be several times the printed one. One app in five has jobs of 2 GPUs.

Workload 1, `parametric` with TRACED: as the trace that the authors published with their simulator, of 84 apps
with 4,697 jobs. Its apps differ more than is printed: few have a single job, of minutes; some have 4 or 20;
larger sweeps have longer tasks; and apps come in bursts.

Workload 2, `halving`: the apps of workload 1 with the same arrival, model and budget, as successive halving.

What comes out has real lengths: `apps.scaled` makes it as small as the paper's testbed needed.
An iteration of workload 1 is a minute of such a task. That is ours, as is: 80 to 120% of the median for an
iteration in workload 2, as in the example of section 4.3.3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from astrarium.cluster.contract import Job
from astrarium.cluster.machines import Machine, Spread
from astrarium.cluster.workloads.apps import DAY, HOUR, DrawnApp, TraceJob
from astrarium.core.errors import InputError
from astrarium.core.processes import Floats
from astrarium.core.streams import stream
from astrarium.core.units import SECOND, Time

# The models of Themis (Mahajan et al., NSDI 2020, Table 4) and what being spread costs them.


SHARES = {"vision": 0.1, "language": 0.6, "speech": 0.3}
MODELS = {
    "Inception-v3": "vision",
    "AlexNet": "vision",
    "ResNet50": "vision",
    "VGG16": "vision",
    "VGG19": "vision",
    "Bi-Att-Flow": "language",
    "LangModel": "language",
    "GNMT": "language",
    "Transformer": "language",
    "WaveNet": "speech",
    "DeepSpeech": "speech",
}
DEFAULT: Final = 1.1
ACROSS_RACKS: Final = 1.3 / 1.1  # times S across machines
INTENSIVE: Final = 1.15  # from this S on, a model is network-intensive
INSENSITIVE: Final = 1.02  # up to this one, it is compute-intensive


# How many times slower models get on GPUs of several machines, and who says so.
_ANYWHERE = {
    **dict.fromkeys(["Bi-Att-Flow", "GNMT", "WaveNet"], DEFAULT),
    "Inception-v3": 1.0,  # Table 1
    "VGG16": 1.29,  # Table 1; AlexNet and VGG19 are taken to be like it
    **dict.fromkeys(["AlexNet", "VGG19"], 1.29),
    "DeepSpeech": 1.155,  # Sia
}
_BY_NETWORK = {  # medians of what Gavel measured; on a fast network, nothing gets slower (Sia)
    "k80": {"LangModel": 1.198, "Transformer": 1.09, "ResNet50": 1.0},
    "p100": {"LangModel": 1.931, "Transformer": 1.375, "ResNet50": 1.017},
    "v100": {"LangModel": 4.343, "Transformer": 1.86, "ResNet50": 1.062},
    "fast": dict.fromkeys(MODELS, 1.0),
}


def _by_spread(times: float) -> dict[Spread, float]:
    racks = times * ACROSS_RACKS if times > INSENSITIVE else times
    return {Spread.SLOT: 1.0, Spread.MACHINE: 1.0, Spread.RACK: times, Spread.CLUSTER: racks}


SLOWDOWNS = {
    (model, network): _by_spread({**_ANYWHERE, **own}[model])
    for network, own in _BY_NETWORK.items()
    for model in MODELS
}


def network_intensive(network: str) -> list[str]:
    """Return the models that suffer from being spread."""
    return [model for model in MODELS if SLOWDOWNS[model, network][Spread.RACK] >= INTENSIVE]


def compute_intensive(network: str) -> list[str]:
    """Return the models that do not mind being spread. Some are neither."""
    return [model for model in MODELS if SLOWDOWNS[model, network][Spread.RACK] <= INSENSITIVE]


def pick(models: list[str], category: float, inside: float) -> str:
    """Return a model: of two numbers in [0, 1) one picks the category by its share, one a model of it."""
    kinds = [kind for kind in SHARES if any(MODELS[model] == kind for model in models)]
    if not kinds:
        raise InputError("models", models, "at least one model of Themis")
    point = category * sum(SHARES[kind] for kind in kinds)
    for kind in kinds:
        point -= SHARES[kind]
        if point < 0:
            break
    of_kind = [model for model in models if MODELS[model] == kind]
    return of_kind[int(inside * len(of_kind))]


# The clusters of Themis (Mahajan et al., NSDI 2020, section 6.1).


def machines(
    kinds: tuple[tuple[int, int, int], ...], racks: int = 1, network: str = "k80"
) -> tuple[Machine, ...]:
    """Return so many machines of each of *kinds*, with so many GPUs in slots of so many, over racks in
    turn."""
    shapes = [(gpus, slot) for count, gpus, slot in kinds for _ in range(count)]
    return tuple(Machine(id_, gpus, id_ % racks, slot, network) for id_, (gpus, slot) in enumerate(shapes))


# By the names that files have for them. The machines that are printed for the simulator have 168 GPUs, not
# the 256 that it is said to have: with more machines of 8 it has them.
MACHINES = {
    "themis-testbed": machines(((8, 2, 2), (12, 4, 2))),
    "themis-simulator": machines(((27, 8, 2), (6, 4, 1), (16, 1, 1)), racks=4),
    "themis-printed": machines(((16, 8, 2), (6, 4, 1), (16, 1, 1)), racks=4),
    "themis-truth-telling": machines(((1, 8, 2), (28, 2, 2))),
}


# Hyper-parameter sweeps in a trace of Philly's virtual clusters, which names no users and no apps.


GAP: Time = 120 * SECOND
WINDOW: Time = 14 * DAY
CLUSTERS = 6
FEWEST_JOBS = 10
MOST_JOBS = 100

Sweep: TypeAlias = Sequence[TraceJob]


def best_windows(jobs: Iterable[TraceJob]) -> tuple[list[Sweep], list[Sweep]]:
    """Return sweeps, and jobs on their own, of the clusters with the most sweeps in two weeks.

    Arrivals count from the start of these weeks. Of clusters with as many, those whose names come first.
    """
    clusters: dict[str, list[TraceJob]] = {}
    for job in jobs:
        clusters.setdefault(job.team, []).append(job)
    found = sorted((_best_window(clusters[vc]) for vc in sorted(clusters)), key=lambda each: -len(each[0]))
    sweeps = [sweep[:MOST_JOBS] for large, _ in found[:CLUSTERS] for sweep in large]
    return sweeps, [sweep for _, lone in found[:CLUSTERS] for sweep in lone]


def sweeps_of(jobs: Sequence[TraceJob]) -> list[Sweep]:
    """Return the jobs of one cluster, in order of arrival, cut where a sweep ends; most are alone."""
    cuts = [
        place
        for place, (before, job) in enumerate(pairwise(jobs), start=1)
        if job.gpus != before.gpus or job.arrival - before.arrival > GAP
    ]
    return [jobs[first:last] for first, last in pairwise([0, *cuts, len(jobs)])]


def _best_window(jobs: Sequence[TraceJob]) -> tuple[list[Sweep], list[Sweep]]:
    """Return the two weeks that begin with a sweep and hold the most of them; the earliest of such."""
    parts = sweeps_of(jobs)
    starts = [part[0].arrival for part in parts if len(part) >= FEWEST_JOBS]
    if not starts:
        return [], []
    start = max(starts, key=lambda start: (sum(start <= other < start + WINDOW for other in starts), -start))
    inside = [_from(part, start) for part in parts if start <= part[0].arrival < start + WINDOW]
    large = [part for part in inside if len(part) >= FEWEST_JOBS]
    return large, [part for part in inside if len(part) == 1]


def _from(sweep: Sweep, start: Time) -> Sweep:
    return [msgspec.structs.replace(job, arrival=job.arrival - start) for job in sweep]


APPS = 85
SINGLE_SHARE = 0.1
MEAN_GAP = 3.95 * HOUR  # 85 apps in two weeks
GAP_VARIATION = 1.6  # standard deviation over mean
TWO_GPU_SHARE = 0.2
MOST_GPUS = 2
MINUTE: Time = 60 * SECOND
ITERATION = MINUTE

CONFIGURATIONS = (4, 8, 16, 32)
MOST_GPUS_HALVING = 8
FIRST_ITERATIONS = 25 / 3  # a phase's budget for each of its first jobs: rounded down, that is 8
ITERATION_SPREAD = 0.2


class Sizes(NamedTuple):
    """How many jobs sweeps have, and how long these take."""

    fewest: float
    usual: float
    most: float
    task: float  # the median
    sigma: float  # of the logarithm of a task: over all
    sigma_inside: float  # and among those of an app
    counts: tuple[float, ...] = ()  # quantiles of a sweep's jobs, in place of the first three
    growth: float = 0.0  # by which power of the number of jobs tasks are longer
    single_task: float = 1.0  # how long a job on its own takes, over a task
    single_share: float = SINGLE_SHARE
    gap_variation: float = GAP_VARIATION  # standard deviation over mean


TRACE = Sizes(30, 95, MOST_JOBS, 3.75 * HOUR, 1.6, 0.5)
TRACED = Sizes(
    *(2, 80, MOST_JOBS, 3.44 * HOUR, 0.85, 0.66),
    counts=(2, 4, 4, 6, 19, 20, 20, 45, 56, 78, 80, 82, 83, 85, 87, 88, 92, 96, 98, 100, 100),
    growth=0.3,
    single_task=0.03,
    single_share=0.06,
    gap_variation=3.0,
)


def parametric(
    seed: int = 1,
    apps: int = APPS,
    network_share: float | None = None,
    network: str = "k80",
    sizes: Sizes = TRACE,
) -> tuple[DrawnApp, ...]:
    """Return workload 1, drawn. *network_share* of the apps is network-intensive, others
    compute-intensive."""
    if apps < 1:
        raise InputError("apps", apps, "at least 1 app")
    arrivals = np.cumsum(_gaps(seed, apps - 1, sizes.gap_variation)).tolist()
    counts = _counts(seed, apps, sizes)
    wide = stream(seed, "themis", "gpus").random(apps) < TWO_GPU_SHARE
    drawn = [
        _sweep(id_, _whole(arrival), _tasks(seed, id_, count, center, sizes), 1 + int(two))
        for id_, (arrival, count, center, two) in enumerate(
            zip([0.0, *arrivals], counts, _centers(seed, counts, sizes), wide.tolist(), strict=True)
        )
    ]
    return with_models(drawn, seed, network_share, network)


def _gaps(seed: int, count: int, variation: float) -> Floats:
    """Return hyper-exponential gaps between apps: often short, at times long, each half of the time."""
    random = stream(seed, "themis", "arrivals")
    square = variation**2
    short = (1 + math.sqrt((square - 1) / (square + 1))) / 2
    means = np.where(random.random(count) < short, MEAN_GAP / (2 * short), MEAN_GAP / (2 * (1 - short)))
    return np.asarray(means * random.standard_exponential(count))


def _counts(seed: int, apps: int, sizes: Sizes) -> list[int]:
    """Return the number of jobs of each app; which apps have one is drawn, how many have one is not."""
    random = stream(seed, "themis", "counts")
    single = random.permutation(apps) < round(apps * sizes.single_share)
    if sizes.counts:
        shares = (random.permutation(apps) + 0.5) / apps
        counts = np.interp(shares, np.linspace(0, 1, len(sizes.counts)), sizes.counts)
    else:
        counts = random.triangular(sizes.fewest, sizes.usual, sizes.most, apps)
    return [1 if one else round(count) for one, count in zip(single, counts.tolist(), strict=True)]


def _centers(seed: int, counts: Sequence[int], sizes: Sizes) -> list[float]:
    """Return the logarithm of each app's usual task, over that of all."""
    between = math.sqrt(sizes.sigma**2 - sizes.sigma_inside**2)
    drawn = stream(seed, "themis", "lengths").normal(0, between, len(counts)).tolist()
    larger = [
        math.log(sizes.single_task) if count == 1 else sizes.growth * math.log(count / sizes.usual)
        for count in counts
    ]
    return [center + more for center, more in zip(drawn, larger, strict=True)]


def _tasks(seed: int, app: int, count: int, center: float, sizes: Sizes) -> list[Time]:
    inside = stream(seed, "themis", "lengths", app).normal(center, sizes.sigma_inside, count)
    return [max(SECOND, _whole(task)) for task in (sizes.task * np.exp(inside)).tolist()]


def _whole(time: float) -> Time:
    """Return whole seconds, as in a trace: machines that differ in the last bit draw the same."""
    return round(time / SECOND) * SECOND


def from_philly(
    jobs: Iterable[TraceJob],
    seed: int = 1,
    apps: int = APPS,
    network_share: float | None = None,
    network: str = "k80",
) -> tuple[DrawnApp, ...]:
    """Return workload 1 with sweeps of a trace; chance decides on single jobs and models only."""
    sweeps, lone = best_windows(jobs)
    singles = round(apps * SINGLE_SHARE)
    if len(sweeps) < apps - singles or len(lone) < singles:
        expected = f"{apps - singles} sweeps and {singles} lone jobs in the windows of {CLUSTERS} clusters"
        raise InputError("jobs", f"{len(sweeps)} and {len(lone)}", expected)
    largest = sorted(sweeps, key=lambda sweep: -len(sweep))[: apps - singles]
    chosen = stream(seed, "themis", "singles").choice(len(lone), singles, replace=False)
    taken = sorted([*largest, *(lone[place] for place in chosen)], key=lambda sweep: sweep[0].arrival)
    start = taken[0][0].arrival
    drawn = [
        _sweep(id_, sweep[0].arrival - start, [job.duration for job in sweep], min(sweep[0].gpus, MOST_GPUS))
        for id_, sweep in enumerate(taken)
    ]
    return with_models(drawn, seed, network_share, network)


def _sweep(id_: int, arrival: Time, tasks: Sequence[Time], gpus: int) -> DrawnApp:
    """Return an app whose jobs run for the length of their tasks, on all of their GPUs."""
    jobs = tuple(_job(number, task * gpus, gpus) for number, task in enumerate(tasks))
    tuned = len(jobs) > 1
    return DrawnApp(id_, f"app {id_}", (jobs,), kind="curve" if tuned else "jobs", arrival=arrival)


def _job(number: int, work: Time, gpus: int) -> Job:
    iterations = max(1, round(work / (gpus * ITERATION)))
    whole = iterations * round(work / iterations)
    return Job(number, whole, gpus, gpus, iterations=iterations)


def with_models(
    apps: Sequence[DrawnApp], seed: int, network_share: float | None = None, network: str = "k80"
) -> tuple[DrawnApp, ...]:
    """Return the apps with a model each; a larger share changes the models of those that join it only."""
    choices = stream(seed, "themis", "models").random((len(apps), 2)).tolist()
    pools = _pools(seed, len(apps), network_share, network)
    models = [pick(pool, *choice) for pool, choice in zip(pools, choices, strict=True)]
    return tuple(_training(app, model) for app, model in zip(apps, models, strict=True))


def _pools(seed: int, apps: int, share: float | None, network: str) -> list[list[str]]:
    if share is None:
        return [list(MODELS)] * apps
    intensive = network_intensive(network)
    others = compute_intensive(network)
    if not 0 <= share <= 1:
        raise InputError("network_share", share, "a share from 0 to 1, or none for the mix of the paper")
    if share and not intensive:
        raise InputError("network", network, "a network on which models are network-intensive")
    order = stream(seed, "themis", "network-intensive").permutation(apps)
    return [intensive if place < round(share * apps) else others for place in order]


def _training(app: DrawnApp, model: str) -> DrawnApp:
    phases = tuple(tuple(msgspec.structs.replace(job, model=model) for job in phase) for phase in app.phases)
    return msgspec.structs.replace(app, phases=phases)


def halving(apps: Iterable[DrawnApp], seed: int = 1) -> tuple[DrawnApp, ...]:
    """Return each app's work as a budget of successive halving: half of the jobs go on, twice as long."""
    return tuple(_halved(app, seed) for app in apps)


def iterations_of_phases(jobs: int) -> list[int]:
    """Return the iterations of each phase: equal parts of the budget, what is left to the last (4.3.3)."""
    phases = jobs.bit_length()
    budget = round(FIRST_ITERATIONS * jobs * phases)
    found = [budget // (phases * (jobs >> phase)) for phase in range(phases - 1)]
    return [*found, budget - sum(each * (jobs >> phase) for phase, each in enumerate(found))]


def _halved(app: DrawnApp, seed: int) -> DrawnApp:
    random = stream(seed, "themis", "halving", app.id)
    count = CONFIGURATIONS[int(random.integers(len(CONFIGURATIONS)))]
    rounds = iterations_of_phases(count)
    usual = app.work / sum(each * (count >> phase) for phase, each in enumerate(rounds))
    factors = random.uniform(1 - ITERATION_SPREAD, 1 + ITERATION_SPREAD, count).tolist()
    times = [max(1, round(usual * factor)) for factor in factors]
    best_first = random.permutation(count).tolist()
    numbers = itertools.count()
    model = app.phases[0][0].model
    phases = tuple(
        tuple(
            # it can use twice as many GPUs as in the phase before
            Job(next(numbers), each * times[place], 1, min(1 << phase, MOST_GPUS_HALVING), model, None, each)
            for place in sorted(best_first[: count >> phase])
        )
        for phase, each in enumerate(rounds)
    )
    return msgspec.structs.replace(app, phases=phases, kind="halving")
