"""The workloads of Themis (Mahajan et al., NSDI 2020) are drawn anew: the traces are not public.

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

Workload 2, `halving`: the apps of workload 1 with the same arrival, model and budget, as successive halving.

`on_testbed`: as the 64 GPUs of the paper must have seen them. Section 2.2 tells of the trace: 24,000
GPU-hours at its medians. Figure 11 ends at 1,200. Were tasks made shorter by as much, half of them would end
within one lease. But Table 5 has tasks of 41 and 145 minutes (83 and 580 GPU-minutes on 2 and 4 GPUs), and
section 6.2.3 has 35 seconds as 0.2% of the median app's life and 50 as 2% at the 95th percentile: lives of
4.9 hours, and of 42 minutes at the short end. So tasks lie between those of Table 5 (lognormal around their
geometric mean) and apps have a tenth of the trace's jobs: that makes 1,000 GPU-hours. They come so fast that
half of the apps live about 4.9 hours, which makes some 20 at a time. In workload 2 a single job stays one.

What comes out has real lengths: `apps.scaled` makes it as small as the paper's testbed needed.
An iteration of workload 1 is a minute of such a task. That is ours, as is: 80 to 120% of the median for an
iteration in workload 2, as in the example of section 4.3.3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from astrarium.cluster.workloads.apps import DAY, HOUR, DrawnApp, DrawnJob, PhillyJob, scaled
from astrarium.core.errors import InputError, one_of
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


class Slowdown(msgspec.Struct, frozen=True):
    """How much slower a model gets on GPUs of several machines of a rack, and of several racks."""

    machines: float
    racks: float
    source: str

    def by_spread(self) -> tuple[float, float, float, float]:
        """Return the slowdown inside a slot, over slots of a machine, machines of a rack, and racks."""
        return 1.0, 1.0, self.machines, self.racks


_ANYWHERE = {
    "Inception-v3": (1.0, "table 1"),
    "AlexNet": (1.29, "like VGG16"),
    "VGG16": (1.29, "table 1"),
    "VGG19": (1.29, "like VGG16"),
    "DeepSpeech": (1.155, "sia"),
    **dict.fromkeys(["Bi-Att-Flow", "GNMT", "WaveNet"], (DEFAULT, "default")),
}
_GAVEL = {
    "k80": {"LangModel": 1.198, "Transformer": 1.09, "ResNet50": 1.0},
    "p100": {"LangModel": 1.931, "Transformer": 1.375, "ResNet50": 1.017},
    "v100": {"LangModel": 4.343, "Transformer": 1.86, "ResNet50": 1.062},
}


def _table() -> dict[tuple[str, str], Slowdown]:
    table = {(model, "fast"): _slowdown(1.0, "sia") for model in MODELS}
    for network, measured in _GAVEL.items():
        found = {**_ANYWHERE, **{model: (times, f"gavel {network}") for model, times in measured.items()}}
        table |= {(model, network): _slowdown(*found[model]) for model in MODELS}
    return table


def _slowdown(times: float, source: str) -> Slowdown:
    return Slowdown(times, times * ACROSS_RACKS if times > INSENSITIVE else times, source)


SLOWDOWNS = _table()
NETWORKS = ["k80", "p100", "v100", "fast"]


def slowdown(model: str, network: str) -> Slowdown:
    if model not in MODELS:
        raise InputError("model", model, f"a model of Themis: {one_of(list(MODELS), model)}")
    if network not in NETWORKS:
        raise InputError("network", network, one_of(NETWORKS, network))
    return SLOWDOWNS[model, network]


def network_intensive(network: str) -> list[str]:
    """Return the models that suffer from being spread."""
    return [model for model in MODELS if slowdown(model, network).machines >= INTENSIVE]


def compute_intensive(network: str) -> list[str]:
    """Return the models that do not mind being spread. Some are neither."""
    return [model for model in MODELS if slowdown(model, network).machines <= INSENSITIVE]


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


Mix = Literal["printed", "more-of-8", "more-of-4"]

# How many machines have how many GPUs, in slots of how many.
MIXES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "printed": ((16, 8, 2), (6, 4, 1), (16, 1, 1)),
    "more-of-8": ((27, 8, 2), (6, 4, 1), (16, 1, 1)),
    "more-of-4": ((16, 8, 2), (28, 4, 1), (16, 1, 1)),
}
TESTBED_KINDS = ((8, 2, 2), (12, 4, 2))
TRUTH_TELLING = ((1, 8, 2), (28, 2, 2))
NETWORK = "k80"  # of SLOWDOWNS
RACKS = 4


class DrawnMachine(msgspec.Struct, frozen=True):
    """A machine of a workload. *slot*: GPUs that are closest to each other. *network* names what connects it
    to others.

    The names are those of the cluster level's machine.
    """

    id: int
    gpus: int
    rack: int = 0
    slot: int = 0
    network: str = ""


def themis_testbed(network: str = NETWORK) -> tuple[DrawnMachine, ...]:
    return machines(TESTBED_KINDS, racks=1, network=network)


def themis_simulator(
    mix: Mix = "more-of-8", racks: int = RACKS, network: str = NETWORK
) -> tuple[DrawnMachine, ...]:
    """Return the machines of the paper's simulator: `printed` has 168 GPUs, the others 256."""
    if mix not in MIXES:
        raise InputError("mix", mix, one_of(list(MIXES), mix))
    return machines(MIXES[mix], racks, network)


def themis_truth_telling(network: str = NETWORK) -> tuple[DrawnMachine, ...]:
    return machines(TRUTH_TELLING, racks=1, network=network)


def machines(
    kinds: tuple[tuple[int, int, int], ...], racks: int = 1, network: str = ""
) -> tuple[DrawnMachine, ...]:
    """Return so many machines of each of *kinds*, with so many GPUs in slots of so many, over racks in
    turn."""
    if racks < 1:
        raise InputError("racks", racks, "at least 1 rack")
    for kind in kinds:
        if min(kind) < 1 or kind[1] % kind[2]:
            raise InputError("kinds", kind, "numbers of at least 1: machines, their GPUs, and a part as slot")
    shapes = [(gpus, slot) for count, gpus, slot in kinds for _ in range(count)]
    return tuple(
        DrawnMachine(id_, gpus, id_ % racks, slot, network) for id_, (gpus, slot) in enumerate(shapes)
    )


def gpus(cluster: tuple[DrawnMachine, ...]) -> int:
    return sum(machine.gpus for machine in cluster)


# Hyper-parameter sweeps in a trace of Philly's virtual clusters, which names no users and no apps.


GAP: Time = 120 * SECOND
WINDOW: Time = 14 * DAY
CLUSTERS = 6
FEWEST_JOBS, MOST_JOBS = 10, 100

Sweep: TypeAlias = Sequence[PhillyJob]


def best_windows(jobs: Iterable[PhillyJob]) -> tuple[list[Sweep], list[Sweep]]:
    """Return sweeps, and jobs on their own, of the clusters with the most sweeps in two weeks.

    Arrivals count from the start of these weeks. Of clusters with as many, those whose names come first.
    """
    clusters: dict[str, list[PhillyJob]] = {}
    for job in jobs:
        clusters.setdefault(job.vc, []).append(job)
    found = sorted((_best_window(clusters[vc]) for vc in sorted(clusters)), key=lambda each: -len(each[0]))
    sweeps = [sweep[:MOST_JOBS] for large, _ in found[:CLUSTERS] for sweep in large]
    return sweeps, [sweep for _, lone in found[:CLUSTERS] for sweep in lone]


def sweeps_of(jobs: Sequence[PhillyJob]) -> list[Sweep]:
    """Return the jobs of one cluster, in order of arrival, cut where a sweep ends; most are alone."""
    cuts = [
        place
        for place, (before, job) in enumerate(pairwise(jobs), start=1)
        if job.gpus != before.gpus or job.arrival - before.arrival > GAP
    ]
    return [jobs[first:last] for first, last in pairwise([0, *cuts, len(jobs)])]


def _best_window(jobs: Sequence[PhillyJob]) -> tuple[list[Sweep], list[Sweep]]:
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


TRACE = Sizes(30, 95, MOST_JOBS, 3.75 * HOUR, 1.6, 0.5)
TESTBED = Sizes(3, 9.5, 10, 77 * MINUTE, 0.5, 0.3)
TESTBED_HOURS, TESTBED_LOAD = 1000.0, 90.0


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
    arrivals = np.cumsum(_gaps(seed, apps - 1)).tolist()
    between = math.sqrt(sizes.sigma**2 - sizes.sigma_inside**2)
    centers = stream(seed, "themis", "lengths").normal(0, between, apps)
    wide = stream(seed, "themis", "gpus").random(apps) < TWO_GPU_SHARE
    drawn = [
        _sweep(id_, _whole(arrival), _tasks(seed, id_, count, center, sizes), 1 + int(two))
        for id_, (arrival, count, center, two) in enumerate(
            zip([0.0, *arrivals], _counts(seed, apps, sizes), centers.tolist(), wide.tolist(), strict=True)
        )
    ]
    return with_models(drawn, seed, network_share, network)


def on_testbed(
    workload: int = 1,
    seed: int = 1,
    apps: int = APPS,
    load: float = TESTBED_LOAD,
    network_share: float | None = None,
    network: str = "k80",
) -> tuple[DrawnApp, ...]:
    """Return a workload as the 64 GPUs of the paper must have seen it. Fewer apps are as much less work."""
    if workload not in (1, 2):
        raise InputError("workload", workload, "1 (sweeps) or 2 (successive halving)")
    drawn = parametric(seed, apps, network_share, network, TESTBED)
    if workload == 2:
        drawn = tuple(_halved(app, seed) if len(app.jobs) > 1 else app for app in drawn)
    return scaled(drawn, TESTBED_HOURS * apps / APPS, load)


def _gaps(seed: int, count: int) -> Floats:
    """Return hyper-exponential gaps between apps: often short, at times long, each half of the time."""
    random = stream(seed, "themis", "arrivals")
    square = GAP_VARIATION**2
    short = (1 + math.sqrt((square - 1) / (square + 1))) / 2
    means = np.where(random.random(count) < short, MEAN_GAP / (2 * short), MEAN_GAP / (2 * (1 - short)))
    return np.asarray(means * random.standard_exponential(count))


def _counts(seed: int, apps: int, sizes: Sizes) -> list[int]:
    """Return the number of jobs of each app; which apps have one is drawn, how many have one is not."""
    random = stream(seed, "themis", "counts")
    single = random.permutation(apps) < round(apps * SINGLE_SHARE)
    counts = random.triangular(sizes.fewest, sizes.usual, sizes.most, apps)
    return [1 if one else round(count) for one, count in zip(single, counts.tolist(), strict=True)]


def _tasks(seed: int, app: int, count: int, center: float, sizes: Sizes) -> list[Time]:
    inside = stream(seed, "themis", "lengths", app).normal(center, sizes.sigma_inside, count)
    return [max(SECOND, _whole(task)) for task in (sizes.task * np.exp(inside)).tolist()]


def _whole(time: float) -> Time:
    """Return whole seconds, as in a trace: machines that differ in the last bit draw the same."""
    return round(time / SECOND) * SECOND


def from_philly(
    jobs: Iterable[PhillyJob],
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
        _sweep(id_, sweep[0].arrival - start, [job.duration for job in sweep], _clipped(sweep))
        for id_, sweep in enumerate(taken)
    ]
    return with_models(drawn, seed, network_share, network)


def _clipped(sweep: Sweep) -> int:
    return min(sweep[0].gpus, MOST_GPUS)


def _sweep(id_: int, arrival: Time, tasks: Sequence[Time], gpus: int) -> DrawnApp:
    """Return an app whose jobs run for the length of their tasks, on all of their GPUs."""
    jobs = tuple(_job(number, task * gpus, gpus) for number, task in enumerate(tasks))
    return DrawnApp(id_, f"app {id_}", arrival, (jobs,), "curve" if len(jobs) > 1 else "jobs")


def _job(number: int, work: Time, gpus: int) -> DrawnJob:
    iterations = max(1, round(work / (gpus * ITERATION)))
    return DrawnJob(number, iterations * round(work / iterations), gpus, gpus, "", iterations, number)


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
    intensive, others = network_intensive(network), compute_intensive(network)
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
    phases = tuple(
        tuple(
            DrawnJob(next(numbers), each * times[place], 1, _most(phase), app.model, each, place)
            for place in sorted(best_first[: count >> phase])
        )
        for phase, each in enumerate(rounds)
    )
    return msgspec.structs.replace(app, phases=phases, kind="halving")


def _most(phase: int) -> int:
    """Return the GPUs that a job can use: twice as many as in the phase before."""
    return min(1 << phase, MOST_GPUS_HALVING)
