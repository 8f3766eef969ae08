"""Workload 1 of Themis is sweeps of a hyper-parameter tuner, drawn anew or taken from a trace.

Printed (section 2.2): 85 apps of a hyper-parameter tuner in two weeks; one in ten has a single job, others
have up to 100, with a median of 75; half of the tasks take longer than 3.75 hours, half of the apps more than
11.5 GPU-days, many ten times more or less; about 50 GPUs are wanted on average. Jobs have 1 or 2 GPUs.

`from_philly`: the two weeks with the most sweeps of the six richest clusters are laid over one another; 77
sweeps with the most jobs and 8 jobs of their own are taken.

`parametric`: jobs of an app from a triangular distribution whose median, with the single jobs, is 75; tasks
lognormal. Inferred, from the sweeps above: gaps between apps vary 1.6 times as much as exponential ones; jobs
of an app are alike (a standard deviation of 0.5 of the logarithm, of 1.6 over all). With unlike ones the
median app would be several times the printed one. One app in five has jobs of 2 GPUs.

`parametric` with TRACED: as the trace that the authors published with their simulator, of 84 apps with 4,697
jobs. Its apps differ more than is printed: few have a single job, of minutes; some have 4 or 20; larger
sweeps have longer tasks; and apps come in bursts.

An iteration is a minute of such a task; that is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from astrarium.cluster.contract import Job
from astrarium.cluster.workloads.apps import HOUR, DrawnApp
from astrarium.cluster.workloads.themis.models import MODELS, compute_intensive, network_intensive, pick
from astrarium.cluster.workloads.themis.philly import CLUSTERS, MOST_JOBS, best_windows
from astrarium.cluster.workloads.traces import TraceJob
from astrarium.core.errors import InputError
from astrarium.core.processes import Floats
from astrarium.core.quantities import SECOND, Time
from astrarium.core.random_streams import stream

APPS = 85
SINGLE_SHARE = 0.1
MEAN_GAP = 3.95 * HOUR  # 85 apps in two weeks
GAP_VARIATION = 1.6  # standard deviation over mean
TWO_GPU_SHARE = 0.2
MOST_GPUS = 2
MINUTE: Time = 60 * SECOND
ITERATION = MINUTE


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
