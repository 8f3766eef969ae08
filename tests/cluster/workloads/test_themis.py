"""Themis's workloads and machines have the facts that the paper states of them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np
import pytest

from astrarium.cluster.contract import App
from astrarium.cluster.machines import Floor, Machine, Spread
from astrarium.cluster.workloads.apps import HOUR, DrawnApp, scaled, stretched
from astrarium.cluster.workloads.themis import models, successive_halving, sweeps
from astrarium.cluster.workloads.themis.clusters import MACHINES, machines
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND
from tests.support.cluster.public_traces import recorded
from tests.support.cluster.workload_facts import facts, iteration, model_of, task

SEEDS = range(1, 13)


def test_workload_1_has_the_facts_of_the_paper() -> None:
    drawn = [facts(sweeps.parametric(seed)) for seed in SEEDS]
    for workload in drawn:
        assert workload.apps == 85
        assert workload.single_share == pytest.approx(0.1, abs=0.01)
        assert workload.median_jobs == pytest.approx(75, abs=8)
        assert 3.75 / 2 < workload.median_task_hours < 3.75 * 2
        assert 11.5 / 2 < workload.median_app_gpu_days < 11.5 * 2
    assert np.mean([workload.median_jobs for workload in drawn]) == pytest.approx(75, abs=2.5)
    assert geometric([workload.median_task_hours for workload in drawn]) == pytest.approx(3.75, rel=0.25)
    assert geometric([workload.median_app_gpu_days for workload in drawn]) == pytest.approx(11.5, rel=0.25)
    assert np.mean([workload.span_hours for workload in drawn]) == pytest.approx(14 * 24, rel=0.15)


def geometric(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def test_tasks_differ_tenfold_between_apps_and_little_inside() -> None:
    apps = [app for seed in SEEDS for app in sweeps.parametric(seed) if len(app.jobs) > 1]
    logs = [np.log([task(job) / (3.75 * HOUR) for job in app.jobs]) for app in apps]
    everything = np.concatenate(logs)
    assert np.mean(everything > np.log(10)) == pytest.approx(0.075, abs=0.025)
    assert np.mean(everything < -np.log(10)) == pytest.approx(0.075, abs=0.025)
    assert np.mean([log.std() for log in logs]) == pytest.approx(0.5, abs=0.02)


def test_jobs_have_one_or_two_gpus_and_apps_up_to_a_hundred_jobs() -> None:
    apps = [app for seed in SEEDS for app in sweeps.parametric(seed)]
    jobs = [job for app in apps for job in app.jobs]
    assert {(job.least, job.most) for job in jobs} == {(1, 1), (2, 2)}
    assert np.mean([job.least == 2 for job in jobs]) == pytest.approx(0.2, abs=0.05)
    sizes = {len(app.jobs) for app in apps}
    assert min(sizes - {1}) >= 30
    assert max(sizes) <= 100
    assert {app.kind for app in apps if len(app.jobs) == 1} == {"jobs"}
    assert {app.kind for app in apps if len(app.jobs) > 1} == {"curve"}


def test_the_trace_that_the_authors_published_has_its_facts() -> None:
    """Of 84 apps: half have 78.5 jobs and more, half of the tasks take 3.75 h, and the logarithm of an app's
    work has a standard deviation of 2.26; there are gaps of 3.0 times their mean."""
    several = [sweeps.parametric(seed, sizes=sweeps.TRACED) for seed in SEEDS]
    spreads = [np.log([app.work for app in apps]).std() for apps in several]
    assert np.mean(spreads) == pytest.approx(2.26, abs=0.15)
    assert np.mean([facts(apps).median_jobs for apps in several]) == pytest.approx(78.5, abs=3)
    assert geometric([facts(apps).median_task_hours for apps in several]) == pytest.approx(3.75, rel=0.1)
    assert {facts(apps).single_share for apps in several} == {5 / 85}
    long = [sweeps.parametric(seed, apps=400, sizes=sweeps.TRACED) for seed in SEEDS[:4]]
    gaps = np.concatenate([np.diff([app.arrival for app in apps]) for apps in long])
    assert gaps.std() / gaps.mean() == pytest.approx(3.0, abs=0.3)


def test_the_authors_trace_has_the_facts_that_are_drawn() -> None:
    """The facts, from the trace itself where it is at hand."""
    with recorded("themis/workload1_jobs.csv").open() as file:
        rows = [(int(app), int(runtime) * int(gpus)) for app, _, runtime, gpus in list(csv.reader(file))[1:]]
    apps: dict[int, list[int]] = {}
    for app, work in rows:
        apps.setdefault(app, []).append(work)
    assert np.log([sum(jobs) for jobs in apps.values()]).std() == pytest.approx(2.26, abs=0.01)
    counts = [len(jobs) for jobs in apps.values()]
    assert np.mean(np.array(counts) == 1) == pytest.approx(sweeps.TRACED.single_share, abs=0.001)
    quantiles = np.quantile([count for count in counts if count > 1], np.linspace(0, 1, 21))
    assert quantiles == pytest.approx(np.array(sweeps.TRACED.counts), abs=0.5)


def test_arrivals_are_bursty() -> None:
    gaps = np.concatenate(
        [np.diff([app.arrival for app in sweeps.parametric(seed, apps=400)]) for seed in SEEDS]
    )
    assert gaps.min() >= 0
    assert gaps.mean() / HOUR == pytest.approx(3.95, rel=0.08)
    assert gaps.std() / gaps.mean() == pytest.approx(1.6, abs=0.15)
    assert sweeps.parametric()[0].arrival == 0


def test_work_is_whole_iterations_of_about_a_minute_on_its_gpus() -> None:
    for job in (job for app in sweeps.parametric() for job in app.jobs):
        assert iteration(job) * job.iterations == job.work
        assert iteration(job) == pytest.approx(60 * SECOND * job.least, rel=0.5)


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    assert sweeps.parametric(3) == sweeps.parametric(3)
    assert sweeps.parametric(3) != sweeps.parametric(4)
    assert successive_halving.halving(sweeps.parametric(3), 5) == successive_halving.halving(
        sweeps.parametric(3), 5
    )
    assert successive_halving.halving(sweeps.parametric(3), 5) != successive_halving.halving(
        sweeps.parametric(3), 6
    )


def test_models_come_from_three_categories() -> None:
    count = 20_000
    apps = [sweeps.parametric(apps=1)[0]] * count
    drawn = Counter(model_of(app) for app in sweeps.with_models(apps, seed=1))
    assert set(drawn) == set(models.MODELS)
    for category, share in (("vision", 0.1), ("language", 0.6), ("speech", 0.3)):
        inside = [drawn[model] for model, kind in models.MODELS.items() if kind == category]
        assert sum(inside) / count == pytest.approx(share, abs=0.02)
        assert inside == pytest.approx([share * count / len(inside)] * len(inside), rel=0.2)


def test_the_network_intensive_share_changes_models_and_nothing_else() -> None:
    intensive = set(models.network_intensive("k80"))
    assert intensive == {"AlexNet", "VGG16", "VGG19", "LangModel", "DeepSpeech"}
    assert models.compute_intensive("k80") == ["Inception-v3", "ResNet50"]
    shares = [step / 5 for step in range(6)]
    drawn = [sweeps.parametric(network_share=share) for share in shares]
    for share, apps in zip(shares, drawn, strict=True):
        assert sum(model_of(app) in intensive for app in apps) == round(share * 85)
        assert [shape(app) for app in apps] == [shape(app) for app in sweeps.parametric()]
    for fewer, more in pairwise(drawn):
        kept = [(one, two) for one, two in zip(fewer, more, strict=True) if model_of(one) in intensive]
        assert all(model_of(one) == model_of(two) for one, two in kept)


def shape(app: DrawnApp) -> tuple[int, list[tuple[int, int]]]:
    return app.arrival, [(job.work, job.least) for job in app.jobs]


def test_phases_share_the_budget_as_in_the_example() -> None:
    assert successive_halving.iterations_of_phases(4) == [8, 16, 36]
    for jobs in successive_halving.CONFIGURATIONS:
        spent = [
            iterations * (jobs >> phase)
            for phase, iterations in enumerate(successive_halving.iterations_of_phases(jobs))
        ]
        assert max(spent) < 1.2 * min(spent)


@pytest.mark.parametrize("seed", [1, 2])
def test_workload_2_halves(seed: int) -> None:
    first = sweeps.parametric(seed)
    for before, app in zip(first, successive_halving.halving(first, seed), strict=True):
        assert app.kind == "halving"
        assert (app.id, app.arrival, model_of(app)) == (before.id, before.arrival, model_of(before))
        assert app.work == pytest.approx(before.work, rel=successive_halving.ITERATION_SPREAD + 1e-6)
        count = len(app.phases[0])
        assert [len(phase) for phase in app.phases] == [count >> place for place in range(count.bit_length())]
        for place, phase in enumerate(app.phases):
            assert {(job.least, job.most) for job in phase} == {(1, min(2**place, 8))}
            assert len({job.iterations for job in phase}) == 1
        assert [job.id for job in app.jobs] == list(range(2 * count - 1))


def test_those_that_go_on_keep_their_iteration_time() -> None:
    counts = set()
    for app in successive_halving.halving(sweeps.parametric()):
        counts.add(len(app.phases[0]))
        times = {iteration(job) for job in app.phases[0]}
        assert max(times) <= 1.5 * min(times) + 1
        for earlier, later in pairwise(app.phases):
            assert {iteration(job) for job in later} < {iteration(job) for job in earlier}
            assert len(later) == len(earlier) // 2
    assert counts == {4, 8, 16, 32}


@pytest.mark.parametrize("kind", [lambda apps: apps, successive_halving.halving])
def test_scaled_to_the_testbed(kind: Callable[[tuple[DrawnApp, ...]], tuple[DrawnApp, ...]]) -> None:
    drawn = kind(sweeps.parametric())
    small = scaled(drawn)
    assert facts(small).gpu_hours == pytest.approx(1000, rel=1e-6)
    assert facts(small).load == pytest.approx(50, rel=1e-6)
    assert facts(small).span_hours == pytest.approx(20, rel=1e-6)
    assert facts(small).jobs == facts(drawn).jobs
    shares = [one.work / two.work for one, two in zip(small, drawn, strict=True)]
    assert shares == pytest.approx([shares[0]] * len(shares), rel=1e-6)


def test_one_factor_for_work_and_arrivals_keeps_the_load() -> None:
    drawn = sweeps.parametric()
    small = scaled(drawn, load=None)
    assert facts(small).gpu_hours == pytest.approx(1000, rel=1e-6)
    assert facts(small).load == pytest.approx(facts(drawn).load, rel=1e-6)


def test_the_drawn_load_is_far_above_that_of_the_paper() -> None:
    """Long tasks make the mean: about 3.6 times the median. So arrivals get a factor of their own."""
    loads = [facts(sweeps.parametric(seed)).load for seed in SEEDS]
    assert min(loads) > 100
    assert median(loads) == pytest.approx(270, rel=0.35)


def test_stretching_keeps_iterations_whole() -> None:
    for app in stretched(sweeps.parametric(apps=5), 0.0137, 0.5):
        assert all(job.work == iteration(job) * job.iterations for job in app.jobs)
    with pytest.raises(InputError, match="arrivals: expected a factor above 0"):
        stretched([], 1, 0)
    with pytest.raises(InputError, match="load: expected a number of GPUs above 0"):
        scaled(sweeps.parametric(apps=5), load=0)
    with pytest.raises(InputError, match="at least one app"):
        scaled([])


def test_machines_are_as_printed() -> None:
    counts = {name: Counter(machine.gpus for machine in cluster) for name, cluster in MACHINES.items()}
    assert counts["themis-testbed"] == {2: 8, 4: 12}
    assert counts["themis-printed"] == {8: 16, 4: 6, 1: 16}
    assert counts["themis-truth-telling"] == {8: 1, 2: 28}
    sizes = [sum(machine.gpus for machine in cluster) for cluster in MACHINES.values()]
    assert sizes == [64, 256, 168, 64]


def test_racks_of_the_simulator_are_alike() -> None:
    cluster = MACHINES["themis-printed"]
    racks = Counter((machine.rack, machine.gpus) for machine in cluster)
    assert {racks[rack, 8] for rack in range(4)} == {4}
    assert {(machine.gpus, machine.slot) for machine in cluster} == {(8, 2), (4, 1), (1, 1)}
    assert machines(((1, 4, 2),), network="") == (Machine(0, 4, 0, 2),)


@pytest.mark.parametrize("kind", [lambda apps: apps, successive_halving.halving])
def test_drawn_apps_are_apps(kind: Callable[[tuple[DrawnApp, ...]], tuple[DrawnApp, ...]]) -> None:
    for drawn in kind(sweeps.parametric(apps=12)):
        app = msgspec.convert(drawn, App, from_attributes=True)
        assert (app.id, app.name, app.kind, app.work) == (drawn.id, drawn.name, drawn.kind, drawn.work)
        jobs = [job for phase in app.phases for job in phase]
        for one, two in zip(jobs, drawn.jobs, strict=True):
            assert (one.least, one.most, one.model) == (two.least, two.most, model_of(drawn))


def test_machines_of_the_simulator_are_dealt_to_racks() -> None:
    floor = Floor()
    for machine in MACHINES["themis-printed"]:
        floor.join(machine)
    assert floor.size == 168
    assert floor.spread([0, 1]) is Spread.SLOT
    assert floor.spread([0, 2]) is Spread.MACHINE
    assert floor.spread([0, 4 * 8]) is Spread.RACK  # machines are dealt to 4 racks in turn
    assert floor.spread([0, 8]) is Spread.CLUSTER
