"""Workloads of clusters: readers of traces, Themis's workloads and machines, and what papers say of them."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import pytest

from astrarium.cluster.contract import App
from astrarium.cluster.machines import Floor, Machine, Spread
from astrarium.cluster.workloads.apps import DAY, HOUR, DrawnApp, scaled, single_apps, stretched
from astrarium.cluster.workloads.themis import models, successive_halving, sweeps
from astrarium.cluster.workloads.themis.clusters import MACHINES, machines
from astrarium.cluster.workloads.themis.philly import best_windows, sweeps_of
from astrarium.cluster.workloads.traces import TraceJob, read_trace
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND
from tests.support.cluster.workload_facts import facts, iteration, model_of, task
from tests.support.paths import ROOT

# Public traces are not part of the project: a folder with them may lie beside it, or be named.
DATA = Path(os.environ.get("ASTRARIUM_CLUSTER_DATA", ROOT.parent / "shared/data/cluster"))
SEEDS = range(1, 13)

read_philly, read_shockwave, read_tiresias = (
    partial(read_trace, format=name) for name in ("philly", "shockwave", "tiresias")
)


def recorded(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {name} beside the project: ASTRARIUM_CLUSTER_DATA may name its folder")
    return path


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def written(text: str) -> Path:
        path = tmp_path / "trace.csv"
        path.write_text(text)
        return path

    return written


PHILLY = "vc,job,arrival_s,num_gpus,duration_s\n"
SHOCKWAVE = "job,arrival_s,num_gpus,model,batch_size,mode,total_steps,num_epochs,exclusive_runtime_s\n"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration\n"


def test_each_format_is_read(write: Callable[[str], Path]) -> None:
    assert read_philly(write(PHILLY + "a,0,0,2,1500\n")) == [TraceJob("a/0", 0, 2, 1500 * SECOND, "a")]
    assert read_shockwave(write(SHOCKWAVE + "3,7,4,LM,10,gns,900,5,12.5\n")) == [
        TraceJob("job 3", 7 * SECOND, 4, 12_500_000_000, model="LM", iterations=5)
    ]
    assert read_tiresias(write(TIRESIAS + "1,8,30,133,vgg11,147\n")) == [
        TraceJob("job 1", 30 * SECOND, 8, 147 * SECOND, model="vgg11", iterations=133)
    ]


def test_columns_may_stand_in_any_order_among_others(write: Callable[[str], Path]) -> None:
    rows = read_philly(
        write("status,duration_s,num_gpus,arrival_s,job,vc\nPass,9,1,2,0,a\n\nPass,9,1,3,1,a\n")
    )
    assert rows == [
        TraceJob(f"a/{job}", arrival * SECOND, 1, 9 * SECOND, "a") for job, arrival in ((0, 2), (1, 3))
    ]


def test_virtual_clusters_have_clocks_of_their_own(write: Callable[[str], Path]) -> None:
    rows = read_philly(write(PHILLY + "a,0,50,1,9\nb,0,0,1,9\na,1,60,1,9\n"))
    assert [app.name for app in single_apps(rows)] == ["b/0", "a/0", "a/1"]


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (read_philly, "", "line 1: expected a header with vc,job"),
        (read_philly, "vc,job,arrival_s,num_gpus\n", "missing: duration_s"),
        (read_philly, PHILLY, "expected at least one row"),
        (read_philly, PHILLY + "a,0,0,1\n", "line 2: expected 5 cells"),
        (read_philly, PHILLY + ",0,0,1,9\n", "line 2, vc: expected a name"),
        (read_philly, PHILLY + "a,0,0,0,9\n", "line 2, num_gpus: expected a whole number of at least 1"),
        (read_philly, PHILLY + "a,0,0,1.5,9\n", "num_gpus: expected a whole number"),
        (read_philly, PHILLY + "a,0,-1,1,9\n", "line 2, arrival_s: expected seconds, at least 0"),
        (read_philly, PHILLY + "a,0,nan,1,9\n", "arrival_s: expected seconds"),
        (read_philly, PHILLY + "a,0,0,1,0\n", "duration_s: expected seconds above 0"),
        (read_philly, PHILLY + "a,0,0,1,1e99\n", "at most 3650 days"),
        (read_philly, PHILLY + "a,0,5,1,9\nb,0,9,1,9\na,1,4,1,9\n", "line 4: expected times in rising order"),
        (read_shockwave, SHOCKWAVE + "0,0,1,LM,10,gnss,9,5,12\n", "did you mean 'gns'"),
        (read_shockwave, SHOCKWAVE + "0,9,1,LM,1,gns,9,5,1\n1,8,1,LM,1,gns,9,5,1\n", "rising order"),
        (read_tiresias, TIRESIAS + "0,1,x,606,vgg19,164\n", "line 2, submit_time: expected seconds"),
    ],
)
def test_errors_name_line_and_column(
    read: Callable[[Path], list[Any]], text: str, said: str, write: Callable[[str], Path]
) -> None:
    path = write(text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_philly(tmp_path / "binary.csv")
    with pytest.raises(InputError, match="No such file"):
        read_philly(tmp_path / "absent.csv")


def test_a_recorded_job_is_an_app_whose_gang_is_whole() -> None:
    job = TraceJob("job 3", 7 * SECOND, 4, 10 * SECOND, model="LM", iterations=5)
    (app,) = single_apps([job])
    assert (app.arrival, app.work, model_of(app)) == (7 * SECOND, 40 * SECOND, "LM")
    (drawn,) = app.jobs
    assert (drawn.least, drawn.most, task(drawn), drawn.iterations) == (4, 4, 10 * SECOND, 5)


def test_philly_is_as_described() -> None:
    jobs = read_philly(recorded("philly_vc_jobs.csv"))
    durations = [job.duration // SECOND for job in jobs]
    assert len(jobs) == 15_264
    assert len({job.team for job in jobs}) == 15
    sizes = Counter(job.gpus for job in jobs)
    assert [sizes[gpus] for gpus in (1, 2, 4, 8)] == [10_480, 463, 2_044, 1_916]
    assert sum(sizes.values()) - sum(sizes[gpus] for gpus in (1, 2, 4, 8)) == 361
    assert max(sizes) == 64
    assert median(durations) == 16_727
    assert sum(durations) / len(durations) == pytest.approx(133_241, abs=1)
    assert min(durations) == 1_200
    assert max(durations) == pytest.approx(60 * 86_400, rel=0.01)
    assert sum(job.duration * job.gpus for job in jobs) / HOUR == pytest.approx(1.74e6, rel=0.005)
    example = next(job for job in jobs if job.name == "ee9e8c/539")
    assert (example.gpus, example.duration) == (8, (74 + 193_182) * SECOND)


def test_shockwave_is_as_described() -> None:
    jobs = read_shockwave(recorded("shockwave_120jobs_32gpus.csv"))
    reference = json.loads(recorded("reference_120jobs_32gpus.json").read_text())
    hours = {run["gpu_hours"] for name, run in reference.items() if name.startswith("shockwave_120")}
    assert len(jobs) == 120
    assert [sum(job.duration * job.gpus for job in jobs) / HOUR] == pytest.approx(list(hours), abs=0.01)
    assert max(job.duration for job in jobs) == pytest.approx(17_235 * SECOND, abs=SECOND)
    assert jobs[-1].arrival == 5_011 * SECOND


def test_tiresias_is_as_described() -> None:
    jobs = read_tiresias(recorded("tiresias_60_job.csv"))
    assert len(jobs) == 60
    assert max(job.duration * job.gpus for job in jobs) == 2_440 * SECOND


@pytest.mark.parametrize("network", ["k80", "p100", "v100"])
@pytest.mark.parametrize(
    ("model", "as_named"), [("LangModel", "LM"), ("Transformer", "Transformer"), ("ResNet50", "ResNet-50")]
)
def test_slowdowns_of_gavel_are_medians_of_what_it_measured(network: str, model: str, as_named: str) -> None:
    with recorded("gavel_consolidation_slowdown.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 165
    names = ("steps_per_s_consolidated", "steps_per_s_unconsolidated")
    rates = [
        [float(row[name]) for name in names]
        for row in rows
        if (row["gpu_type"], row["model"]) == (network, as_named)
    ]
    found = [max(1.0, together / spread) for together, spread in rates]  # less than 1 is noise
    assert models.SLOWDOWNS[model, network][Spread.RACK] == pytest.approx(median(found), abs=0.001)


def test_every_model_has_a_slowdown_on_every_network() -> None:
    networks = ("k80", "p100", "v100", "fast")
    assert set(models.SLOWDOWNS) == {(model, network) for model in models.MODELS for network in networks}
    for entry in models.SLOWDOWNS.values():
        assert list(entry) == list(Spread)
        assert list(entry.values()) == sorted(entry.values())
        assert entry[Spread.SLOT] == 1
    assert models.SLOWDOWNS["VGG16", "k80"][Spread.RACK] == pytest.approx(103.6 / 80.4, abs=0.002)
    assert list(models.SLOWDOWNS["GNMT", "k80"].values()) == pytest.approx([1, 1, 1.1, 1.3])


def test_shares_and_networks_are_checked() -> None:
    with pytest.raises(InputError, match="models are network-intensive"):
        sweeps.parametric(network_share=0.5, network="fast")
    with pytest.raises(InputError, match="from 0 to 1"):
        sweeps.parametric(network_share=40)


# Themis's workload 1


def test_workload_1_has_the_facts_of_the_paper() -> None:
    drawn = [facts(sweeps.parametric(seed)) for seed in SEEDS]
    for each in drawn:
        assert each.apps == 85
        assert each.single_share == pytest.approx(0.1, abs=0.01)
        assert each.median_jobs == pytest.approx(75, abs=8)
        assert 3.75 / 2 < each.median_task_hours < 3.75 * 2
        assert 11.5 / 2 < each.median_app_gpu_days < 11.5 * 2
    assert np.mean([each.median_jobs for each in drawn]) == pytest.approx(75, abs=2.5)
    assert geometric([each.median_task_hours for each in drawn]) == pytest.approx(3.75, rel=0.25)
    assert geometric([each.median_app_gpu_days for each in drawn]) == pytest.approx(11.5, rel=0.25)
    assert np.mean([each.span_hours for each in drawn]) == pytest.approx(14 * 24, rel=0.15)


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


# The same from Philly


def burst(vc: str, start: int, jobs: int, gpus: int = 1, first: int = 0) -> list[TraceJob]:
    return [
        TraceJob(f"{vc}/{first + place}", (start + place) * SECOND, gpus, (1800 + place) * SECOND, vc)
        for place in range(jobs)
    ]


def test_a_sweep_ends_with_a_gap_or_other_gpus() -> None:
    jobs = [*burst("a", 0, 5), *burst("a", 124, 5), *burst("a", 249, 5), *burst("a", 254, 3, gpus=2)]
    assert [len(sweep) for sweep in sweeps_of(jobs)] == [10, 5, 3]


def test_the_weeks_with_most_sweeps_are_laid_over_one_another() -> None:
    late = 30 * DAY // SECOND
    a = [*burst("a", 0, 12), *burst("a", late, 10), *burst("a", late + 500, 1), *burst("a", late + 1000, 150)]
    b = [*burst("b", 40, 9), *burst("b", 2000, 20, gpus=8)]
    window = best_windows([*b, *a])
    assert [(sweep[0].team, sweep[0].arrival // SECOND, len(sweep)) for sweep in window.large] == [
        ("a", 0, 10),
        ("a", 1000, 100),
        ("b", 0, 20),
    ]
    assert [sweep[0].arrival // SECOND for sweep in window.lone] == [500]


def test_only_the_six_clusters_with_most_sweeps_count() -> None:
    rich = [job for vc in "bcdefg" for start in (0, 1000) for job in burst(vc, start, 10)]
    large = best_windows([*burst("a", 0, 10), *rich]).large
    assert {sweep[0].team for sweep in large} == set("bcdefg")


def test_apps_from_sweeps_are_clipped_to_two_gpus() -> None:
    wide = [job for place in range(9) for job in burst("a", place * 1000, 10 + place, gpus=1 + place % 4)]
    trace = sorted([*wide, *burst("a", 500, 1, gpus=8)], key=lambda job: job.arrival)
    apps = sweeps.from_philly(trace, apps=10)
    assert [len(app.jobs) for app in apps] == [10, 1, *range(11, 19)]
    assert [app.jobs[0].least for app in apps] == [1, 2, 2, 2, 2, 1, 2, 2, 2, 1]
    assert task(apps[2].jobs[0]) == 1800 * SECOND
    assert apps[2].arrival == 1000 * SECOND
    with pytest.raises(InputError, match="expected 18 sweeps and 2 lone jobs"):
        sweeps.from_philly(trace, apps=20)


def test_philly_makes_85_apps() -> None:
    jobs = read_philly(recorded("philly_vc_jobs.csv"))
    large = best_windows(jobs).large
    found = Counter(sweep[0].team for sweep in large)
    assert found == {"6c71a0": 25, "b436b2": 18, "ed69ec": 18, "6214e9": 14, "11cb48": 9, "0e4a51": 8}
    parts = sweeps_of([job for job in jobs if job.team == "6c71a0"])
    assert median(job.duration for part in parts if len(part) >= 10 for job in part) == 10_708 * SECOND
    known = facts(sweeps.from_philly(jobs))
    assert known.apps == 85
    assert known.single_share == pytest.approx(8 / 85)
    assert known.span_hours <= 14 * 24
    # Where Philly as it is public differs from the paper's own trace: fewer and shorter jobs.
    assert known.median_jobs == pytest.approx(29, abs=1)
    assert known.median_task_hours == pytest.approx(1.5, abs=0.1)
    assert 2 < known.median_app_gpu_days < 2.5


def test_sweeps_of_philly_vary_as_the_drawn_ones_do() -> None:
    large = best_windows(read_philly(recorded("philly_vc_jobs.csv"))).large
    logs = [np.log([job.duration for job in sweep]) for sweep in large]
    assert np.concatenate(logs).std() == pytest.approx(sweeps.TRACE.sigma, abs=0.1)
    assert np.sqrt(np.mean([log.var() for log in logs])) == pytest.approx(sweeps.TRACE.sigma_inside, abs=0.05)
    gaps = np.diff(sorted(sweep[0].arrival for sweep in large))
    assert gaps.std() / gaps.mean() == pytest.approx(sweeps.GAP_VARIATION, abs=0.1)


# Workload 2


def test_phases_share_the_budget_as_in_the_example() -> None:
    assert successive_halving.iterations_of_phases(4) == [8, 16, 36]
    for jobs in successive_halving.CONFIGURATIONS:
        spent = [
            each * (jobs >> phase) for phase, each in enumerate(successive_halving.iterations_of_phases(jobs))
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


# Smaller


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


# Machines


def test_machines_are_as_printed() -> None:
    found = {name: Counter(machine.gpus for machine in cluster) for name, cluster in MACHINES.items()}
    assert found["themis-testbed"] == {2: 8, 4: 12}
    assert found["themis-printed"] == {8: 16, 4: 6, 1: 16}
    assert found["themis-truth-telling"] == {8: 1, 2: 28}
    sizes = [sum(machine.gpus for machine in cluster) for cluster in MACHINES.values()]
    assert sizes == [64, 256, 168, 64]


def test_racks_of_the_simulator_are_alike() -> None:
    cluster = MACHINES["themis-printed"]
    racks = Counter((machine.rack, machine.gpus) for machine in cluster)
    assert {racks[rack, 8] for rack in range(4)} == {4}
    assert {(machine.gpus, machine.slot) for machine in cluster} == {(8, 2), (4, 1), (1, 1)}
    assert machines(((1, 4, 2),), network="") == (Machine(0, 4, 0, 2),)


# The cluster level


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
