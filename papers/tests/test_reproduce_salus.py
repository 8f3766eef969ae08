"""Salus's table and figures in their quick forms, its workloads, and the trace that Table 2.1 needs."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest
from papers.tests.reproductions import explained, listed, measured_once

from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND
from astrarium.device import salus
from astrarium.device.record import summary
from astrarium.device.salus_trace import LENGTHS, lengths_of, trace
from astrarium.device.scenario.job_arrivals import arrivals_of, job_of
from astrarium_papers import registry
from astrarium_papers.command import _chosen
from astrarium_papers.findings import Claim, Row
from astrarium_papers.markdown import overview
from astrarium_papers.salus import _readings, _workloads, figure2_8, figure2_9, figure2_11, table2_1
from astrarium_papers.salus._settings import MEMORY, MINUTE, named, play

NAMES = ["table2_1", "figure2_8", "figure2_9", "figure2_10", "figure2_11"]
reproduced = measured_once("salus")


def row(name: str, what: str) -> Any:
    (match,) = [row for row in reproduced(name).rows if row.what == what]
    return match


def claims(name: str) -> dict[str, bool]:
    return {claim.what: claim.holds for claim in reproduced(name).claims}


def test_they_are_listed_in_their_order() -> None:
    assert listed("salus") == NAMES


def test_a_name_may_have_the_dot_that_the_paper_has() -> None:
    assert _chosen(["salus/table2.1", "salus/table2_1"]) == ["salus/table2_1"]
    assert registry.title("salus/table2_1") == table2_1.TITLE
    with pytest.raises(InputError, match=r"salus/table2_1"):
        _chosen(["salus/table2.2"])


TestReproductions = explained(reproduced, NAMES)


@pytest.mark.parametrize(
    ("name", "counted", "given"),
    [
        ("table2_1", 14, 4),
        ("figure2_8", 0, 0),
        ("figure2_9", 0, 4),
        ("figure2_10", 1, 1),
        ("figure2_11", 3, 1),
    ],
)
def test_what_follows_from_what_was_put_in_is_not_counted(name: str, counted: int, given: int) -> None:
    rows = [row for row in reproduced(name).rows if row.paper is not None]
    assert sum(row.given for row in rows) == given
    assert len(rows) - given >= counted
    assert all(row.note for row in rows if row.given)
    cells = overview([reproduced(name)]).splitlines()[-1].split(" | ")
    assert cells[2].endswith(f"{given} given") if given else "given" not in cells[2]


def test_claims_that_cannot_fail_are_given() -> None:
    verdicts = {claim.what: claim.verdict for name in NAMES for claim in reproduced(name).claims}
    put_in = [what for what, verdict in verdicts.items() if verdict == "given"]
    assert len(put_in) == 5
    assert "at a switch the next job's iteration starts as the last one's ends" in put_in
    assert Claim("x", holds=False, given=True).verdict == "does not hold"
    assert Row("x", 3.0, 1.0, given=True).verdict == "higher"


def test_srtf_is_about_three_times_better_than_fifo_and_its_makespan_the_same() -> None:
    assert row("table2_1", "mean completion, fifo over srtf").ours > 2.5
    ours = [row("table2_1", f"{policy}: makespan").ours for policy in ("fifo", "srtf", "fair")]
    assert max(ours) - min(ours) < 0.01 * max(ours)


def test_queueing_ends_with_admission() -> None:
    data = reproduced("table2_1").findings.data
    for policy, runs in data["policies"].items():
        assert runs[0]["mean queueing"] <= runs[0]["to first turn"], policy


def test_the_snapshot_is_played_as_told() -> None:
    assert all(claims("figure2_8").values())
    assert [job for job, _, _ in reproduced("figure2_8").findings.data["spans"]] == [
        0,
        1,
        3,
        2,
        0,
        4,
        5,
        4,
        0,
    ]


def test_iterations_that_follow_each_other_are_one_span() -> None:
    iterations = [
        (0, 0, SECOND),
        (0, SECOND, 2 * SECOND),
        (1, 2 * SECOND, 3 * SECOND),
        (0, 4 * SECOND, 5 * SECOND),
    ]
    assert figure2_8.spans(iterations) == [(0, 0.0, 2.0), (1, 2.0, 3.0), (0, 4.0, 5.0)]


def test_shares_are_equal_and_nothing_is_lost() -> None:
    assert all(row.verdict != "lower" and row.verdict != "higher" for row in reproduced("figure2_9").rows)
    assert all(claims("figure2_9").values())
    curves = reproduced("figure2_9").findings.data["images_per_s"]
    images = [sum(curve) * figure2_9.WINDOW_S for curve in curves]
    assert images == pytest.approx([count * figure2_9.BATCH for count in figure2_9.ITERATIONS])


def test_packing_is_worth_it_for_small_trials() -> None:
    assert row("figure2_10", "superres_128: makespan of fifo over pack").ours > 2
    assert row("figure2_10", "resnet50_50: makespan of fifo over pack").ours < 1.2


def test_42_models_share_a_gpu() -> None:
    assert row("figure2_11", "GPUs needed: Salus").ours == 1
    points = reproduced("figure2_11").findings.data["points"]
    added = [point["mean_added_ms"] for point in points]
    assert added == sorted(added)  # the more requests, the longer they wait for each other
    assert added[0] < figure2_11.PAPER_ADDED_MS


def test_gpus_are_filled_until_nothing_fits() -> None:
    models = [_workloads.inference("vgg16")] * 5
    assert figure2_11.gpus_for(models, lambda several: len(several) <= 2) == 3


def test_table_a1_has_15_models_with_three_batch_sizes() -> None:
    workloads = salus.workloads()
    assert len(workloads) == 45
    assert {
        model: [workload.model for workload in workloads].count(model) for model in _workloads.ARCHITECTURES
    } == dict.fromkeys(_workloads.ARCHITECTURES, 3)


def test_what_the_dissertation_prints_of_their_memory() -> None:
    assert salus.lookup("resnet152_75").peak == 13_800 * _workloads.MB
    assert salus.lookup("vae_64").peak == 35 * _workloads.MB
    assert salus.lookup("googlenet_25").persistent / _workloads.MB == pytest.approx(110.9)
    assert salus.lookup("resnet152_75").persistent / _workloads.MB == pytest.approx(822.2)
    largest = max(salus.workloads(), key=lambda workload: workload.persistent)
    assert largest.name == "resnet152_75"


@pytest.mark.parametrize("workload", salus.workloads(), ids=lambda workload: workload.name)
def test_every_workload_fits_and_makes_sense(workload: salus.SalusWorkload) -> None:
    assert 0 < workload.persistent < workload.ephemeral
    assert workload.peak <= salus.GPU_MEMORY
    assert 0 < workload.demand <= 1
    assert 10 <= workload.iteration / 1e6 <= 2000  # tens of milliseconds to a few seconds
    assert workload == _workloads.modelled(workload)


def test_larger_batches_need_more_memory() -> None:
    for model in _workloads.ARCHITECTURES:
        peaks = [workload.peak for workload in salus.workloads() if workload.model == model]
        assert peaks == sorted(peaks)


def test_inference_is_shorter_than_training_and_keeps_the_parameters() -> None:
    for model in _workloads.ARCHITECTURES:
        served = _workloads.inference(model)
        assert 0 < served.iteration < min(e.iteration for e in salus.workloads() if e.model == model)
        assert served.persistent == pytest.approx(4e6 * _workloads.ARCHITECTURES[model].parameters)


@pytest.mark.parametrize("look", [salus.lookup, _workloads.inference])
def test_an_unknown_name_is_told(look: Any) -> None:
    with pytest.raises(InputError, match="resnet50"):
        look("resnet5")


def test_the_trace_is_the_same_for_the_same_seed() -> None:
    assert trace(20, seed=3) == trace(20, seed=3)
    assert trace(20, seed=3) != trace(20, seed=4)


def test_short_jobs_are_the_most() -> None:
    lengths = lengths_of(100, tail=0.7)
    counts = [lengths.count(length) for length in LENGTHS]
    assert sum(counts) == len(lengths) == 100
    assert counts == sorted(counts, reverse=True)
    assert mean(lengths) / MINUTE == pytest.approx(3.0, rel=0.02)


def test_arrivals_are_in_order_and_as_far_apart_as_asked() -> None:
    arrivals = [job.arrival for job in trace(400, interval=30 * SECOND)]
    assert arrivals[0] == 0
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] / 399 == pytest.approx(30 * SECOND, rel=0.15)


def test_long_jobs_come_early_where_asked() -> None:
    def first_half(early: float) -> float:
        jobs = [job for seed in range(20) for job in trace(100, seed, early=early)[:50]]
        return mean(job.iterations * job.workload.iteration for job in jobs)

    assert first_half(0.75) > 1.2 * first_half(0.0) > 1.2 * first_half(-0.75)


def fifo_row(**free: float) -> list[float]:
    """In minutes, on the mean of five traces."""
    traces = [trace(seed=seed, **free) for seed in range(1, 6)]  # type: ignore[arg-type]
    runs = [summary(play("fifo", arrivals_of(trace_rows, 10 * SECOND), MEMORY)) for trace_rows in traces]
    columns = ("makespan", "mean_admission", "mean_completion", "p95_completion")
    return [mean(getattr(run, column) for run in runs) / MINUTE for column in columns]


def test_the_fifo_row_is_met_by_the_free_numbers() -> None:
    assert fifo_row() == pytest.approx(table2_1.PAPER["fifo"], rel=0.02)


def test_in_a_random_order_fifo_would_make_jobs_wait_much_less() -> None:
    assert fifo_row(early=0.0)[1] == pytest.approx(125, rel=0.1)


def test_other_traces_give_the_fifo_row_too() -> None:
    [jobs] = _readings.unequal(2.3, traces=1)
    row = summary(play("fifo", arrivals_of(jobs, 10 * SECOND), MEMORY))
    assert row.mean_admission / MINUTE == pytest.approx(table2_1.PAPER["fifo"][1], rel=0.04)


def test_admitting_whoever_fits_costs_srtf_something() -> None:
    data = reproduced("table2_1").findings.data
    assert data["eager"] > 1.05 * data["policies"]["srtf"][0]["mean completion"]


def test_iterations_can_be_taken_together() -> None:
    vae = salus.lookup("vae_64")
    assert job_of(0, vae, 1000).iterations == 1000
    together = job_of(0, vae, 1000, turn=SECOND)
    assert (together.iteration, together.iterations) == (SECOND, 10)
    assert job_of(0, vae, 3, turn=SECOND).iterations == 1
    assert together.duration == named(0, "vae_64", 1000).duration == named(0, "vae_64", 1000, 100).duration
