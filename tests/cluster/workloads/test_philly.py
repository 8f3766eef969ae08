"""Apps from Philly: jobs that follow each other are a sweep, and the densest weeks overlap."""

from __future__ import annotations

from collections import Counter
from statistics import median

import numpy as np
import pytest

from astrarium.cluster.workloads.apps import DAY
from astrarium.cluster.workloads.themis import sweeps
from astrarium.cluster.workloads.themis.philly import best_windows, sweeps_of
from astrarium.cluster.workloads.traces import TraceJob
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND
from tests.support.cluster.public_traces import read_philly, recorded
from tests.support.cluster.workload_facts import facts, task


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
    by_team = Counter(sweep[0].team for sweep in large)
    assert by_team == {"6c71a0": 25, "b436b2": 18, "ed69ec": 18, "6214e9": 14, "11cb48": 9, "0e4a51": 8}
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
