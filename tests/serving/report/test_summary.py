"""Every number of a summary, against slow plain loops over the same record."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from astrarium.core.errors import BrokenBooks
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.serving.ledger import Fate, Outcome
from astrarium.serving.record import Batches, Requests, ServingRecord
from astrarium.serving.report.summary import percentiles, summarize
from tests.support.report_runs import by_hand, setup, simulated
from tests.support.work import calls_of

RUNS: dict[str, dict[str, Any]] = {
    "light": {},
    "eager overload": {"policy": "eager", "rate": 2500.0},
    "late": {"slower": 1.15, "rate": 1200.0},
    "a GPU leaves": {"gpu_leaves": 1 * SECOND + 3 * MILLISECOND, "rate": 1500.0},
    "a model without requests": {"idle_model": True},
}


@pytest.fixture(params=RUNS)
def record(request: pytest.FixtureRequest) -> ServingRecord:
    return simulated(**RUNS[request.param])


def rows(columns: Requests | Batches) -> list[dict[str, int]]:
    names = list(vars(columns))
    lists = [column.tolist() for column in vars(columns).values()]
    return [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]


def measured(record: ServingRecord) -> list[dict[str, int]]:
    return [row for row in rows(record.requests) if record.warmup <= row["arrival"] < record.duration]


def nearest_rank(values: list[int], percent: int) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1] / 1e6


def count(requests: list[dict[str, int]], outcome: Outcome) -> int:
    return sum(row["outcome"] == outcome for row in requests)


def test_outcomes_and_rates(record: ServingRecord) -> None:
    summary = summarize(record)
    expected = measured(record)
    span = (record.duration - record.warmup) / 1e9
    assert summary.requests == len(expected) > 500
    assert summary.outcomes.in_time == count(expected, Outcome.IN_TIME)
    assert summary.outcomes.late == count(expected, Outcome.LATE)
    assert summary.outcomes.dropped == count(expected, Outcome.DROPPED)
    assert summary.outcomes.failed == count(expected, Outcome.FAILED)
    assert summary.attainment == pytest.approx(summary.outcomes.in_time / len(expected))
    assert summary.offered_rate == pytest.approx(len(expected) / span)
    assert summary.goodput_rate == pytest.approx(summary.outcomes.in_time / span)


def test_the_runs_show_every_outcome() -> None:
    """Or the loops above would compare zeros with zeros."""
    summaries = [summarize(simulated(**arguments)).outcomes for arguments in RUNS.values()]
    for name in ("in_time", "late", "dropped", "failed"):
        assert any(getattr(outcomes, name) > 0 for outcomes in summaries), name


def test_reasons(record: ServingRecord) -> None:
    summary = summarize(record)
    for outcome, counts in (
        (Outcome.DROPPED, summary.dropped_reasons),
        (Outcome.FAILED, summary.failed_reasons),
    ):
        expected: dict[str, int] = {}
        for row in measured(record):
            if row["outcome"] == outcome:
                reason = record.reasons[row["reason"]]
                expected[reason] = expected.get(reason, 0) + 1
        assert counts == expected


def test_models(record: ServingRecord) -> None:
    summary = summarize(record)
    batches = rows(record.batches)
    for index, spec in enumerate(record.setup.models):
        mine = [row for row in measured(record) if row["model"] == index]
        answered = [row for row in mine if row["outcome"] in (Outcome.IN_TIME, Outcome.LATE)]
        latencies = [row["done"] - row["arrival"] for row in answered]
        sizes = [batches[number]["size"] for number in {row["batch"] for row in answered}]
        model = summary.models[spec.name]
        assert model.requests == len(mine)
        assert model.p50_ms == nearest_rank(latencies, 50)
        assert model.p99_ms == nearest_rank(latencies, 99)
        assert model.batches == len(sizes)
        assert model.slo_ms == spec.slo / 1e6
        if mine:
            assert model.attainment == pytest.approx(count(mine, Outcome.IN_TIME) / len(mine))
            assert model.mean_batch == pytest.approx(sum(sizes) / len(sizes))
        else:
            assert model.attainment is model.p50_ms is model.p99_ms is model.mean_batch is None
    worst = min(m.attainment for m in summary.models.values() if m.attainment is not None)
    assert summary.worst is not None
    assert summary.worst.attainment == worst
    assert summary.models[summary.worst.model].attainment == worst


def test_gpu_time(record: ServingRecord) -> None:
    gpus = summarize(record).gpus
    busy = [0] * len(record.setup.gpus)
    free = [0] * len(busy)
    for row in rows(record.batches):
        start = max(row["started"], row["dispatched"])
        if row["fate"] == Fate.FAILED:
            start = max(start, free[row["gpu"]])
        free[row["gpu"]] = row["finished"]
        inside = min(row["finished"], record.duration) - max(start, record.warmup)
        busy[row["gpu"]] += max(inside, 0)
    available = len(busy) * (record.duration - record.warmup)
    assert gpus.busy_fraction == pytest.approx(sum(busy) / available)
    assert gpus.idle_fraction == pytest.approx(1 - sum(busy) / available)
    assert gpus.used == sum(time > 0 for time in busy)
    assert (gpus.count, gpus.wasted_fraction) == (3, 0)


def test_by_hand() -> None:
    summary = summarize(by_hand())
    assert summary.requests == 5  # request 0 came in the warm-up
    assert (summary.outcomes.in_time, summary.outcomes.late) == (2, 1)
    assert (summary.dropped_reasons, summary.failed_reasons) == ({"expired": 1}, {"GPU 1 left": 1})
    model = summary.models["model0"]
    assert (model.p50_ms, model.p99_ms) == (37, 50)  # of 10, 37 and 50
    assert model.mean_batch == pytest.approx((2 + 1 + 1) / 3)
    # GPU 0: 20-30, 40-50 lost with 5 of recovery, 55-75; GPU 1: 80-100
    assert summary.gpus.busy_fraction == pytest.approx((10 + 15 + 20 + 20) / 160)
    assert summary.gpus.wasted_fraction == pytest.approx(15 / 160)
    assert summary.autoscale.bad_rate == pytest.approx(3 / 5)
    assert summary.autoscale.allocate == pytest.approx(2 * 0.6 / 0.4)
    assert summary.autoscale.release == 0


def test_names_are_an_interface() -> None:
    shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(summarize(simulated())))
    promised = {
        "policy",
        "offered_rate",
        "attainment",
        "goodput_rate",
        "outcomes",
        "models",
        "gpus",
        "wall_s",
    }
    assert promised <= shown.keys()
    assert {"dropped_reasons", "autoscale", "seed", "engine", "requests"} <= shown.keys()
    assert shown["outcomes"].keys() == {"in_time", "late", "dropped", "failed"}
    assert {"attainment", "p50_ms", "p99_ms", "mean_batch"} <= shown["models"]["model0"].keys()
    assert {"busy_fraction", "used", "idle_fraction", "wasted_fraction", "count"} <= shown["gpus"].keys()
    assert shown["autoscale"].keys() == {"bad_rate", "idle_fraction", "allocate", "release"}
    assert (shown["wall_s"], shown["seed"], shown["policy"]) == (0.5, 7, "deferred")


def test_a_run_without_requests_is_null_and_no_crash() -> None:
    none = np.empty(0, np.int64)
    small = np.empty(0, np.int32)
    tiny = np.empty(0, np.int8)
    requests = Requests(none, none, small, small, tiny, tiny, none, none, small)
    batches = Batches(small, small, small, none, none, none, tiny)
    summary = summarize(ServingRecord("none", setup(), 0, requests, batches, ("",), 0, SECOND))
    assert summary.attainment is None
    assert summary.worst is None
    assert (summary.offered_rate, summary.gpus.used, summary.gpus.idle_fraction) == (0, 0, 1)
    assert summary.autoscale.release == 3
    assert msgspec.json.decode(msgspec.json.encode(summary))["models"]["model0"]["p99_ms"] is None


def test_an_open_request_breaks_the_books() -> None:
    record = by_hand()
    open_ = record.requests.outcome.copy()
    open_[2] = Outcome.OPEN
    with pytest.raises(BrokenBooks, match="1 request"):
        summarize(replace(record, requests=replace(record.requests, outcome=open_)))


@pytest.mark.parametrize("size", [1, 2, 3, 99, 100, 101, 1000])
def test_percentiles_are_nearest_ranks(size: int) -> None:
    values = np.random.default_rng(size).integers(0, 50, size) * MILLISECOND
    levels = percentiles(values, (1, 50, 99, 100))
    assert levels == tuple(nearest_rank(values.tolist(), p) for p in (1, 50, 99, 100))


def test_a_million_requests_take_as_many_steps_as_a_few() -> None:
    record = simulated(seconds=1.0)
    counts = list[int]()
    for times in (1, 1, 1_000_000 // len(record.requests.arrival)):
        columns = {name: np.tile(column, times) for name, column in vars(record.requests).items()}
        many = replace(record, requests=Requests(**columns))
        counts.append(calls_of(lambda many=many: summarize(many)))  # type: ignore[misc]
    assert counts[2] <= 2 * counts[1] < 2_000  # each is a pass over whole columns
