"""Ours, by length: who leaves together, and who need not wait for whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from astrarium.core.quantities import SECOND, Time
from astrarium.serving.contract import Lengths, ModelSpec, Setup, Together, latency_table
from astrarium.serving.ledger import Outcome
from astrarium.serving.level import run
from astrarium.serving.policies.astrarium.lengths import Buckets, well_used
from astrarium.serving.report.summary import summarize
from astrarium.testing.serving import ServingPolicyConformance
from astrarium.testing.serving.cases import Case, Run, cluster
from tests.serving.scenario.texts import requests_of, setup_with_lengths, surface, texts
from tests.support.rival_runs import ms


class Ours(ServingPolicyConformance):
    policy = "astrarium"


def played(arrivals: Iterable[tuple[float, int]], setup: Setup | None = None) -> Run:
    setup = setup or setup_with_lengths()
    return Ours().observe(Case(setup, requests_of(setup, arrivals), truth=Estimated(setup)))


class Estimated:
    """Batches take what their runs are planned with."""

    def __init__(self, setup: Setup) -> None:
        self._lengths = setup.models[0].lengths

    def execution(self, batch: Any) -> int:
        assert self._lengths is not None
        return sum(self._lengths.latency[bucket][size] for size, bucket in self._lengths.runs(batch.requests))


def lengths_by_batch(played: Run) -> list[list[int]]:
    batches: dict[int, list[int]] = {}
    for request in played.case.requests:
        batches.setdefault(played.state.ledger.batch[request.id], []).append(request.length)
    return [sorted(batches[number]) for number in sorted(batches)]


def test_where_a_launch_is_all_it_costs_unequal_lengths_leave_together() -> None:
    """Two of 64 tokens take no longer than their launch."""
    done = played([(0, 256), (0.1, 10), (0.1, 60)])
    assert lengths_by_batch(done) == [[256], [10, 60]]


def test_no_long_request_makes_sixty_short_ones_late() -> None:
    setup = setup_with_lengths(slo=12, sizes=64)
    done = played([(1, 256), *[(1 + place / 1000, 16) for place in range(60)]], setup)
    assert set(done.state.ledger.outcome) == {Outcome.IN_TIME}
    assert all(len(set(lengths)) == 1 for lengths in lengths_by_batch(done))


def test_no_short_request_waits_for_its_like_while_a_gpu_idles() -> None:
    setup = setup_with_lengths(gpus=4)
    done = played([(1 + 3 * place, length) for place, length in enumerate([10, 256, 60, 10, 256])], setup)
    assert list(done.state.ledger.batch_dispatched) == [request.arrival for request in done.case.requests]


def buckets(surface: tuple[tuple[Time, ...], ...], rates: Sequence[float], slo: float = 50) -> Buckets:
    """After two seconds in which so many requests a second came of each bucket, evenly."""
    found = Buckets(Lengths((16, 64, 256)[: len(surface)], surface), ms(slo), "grouped")
    for bucket, rate in enumerate(rates):
        for number in range(int(2 * rate)):
            found.arrived(round(number * SECOND / rate), bucket)
    found.regroup(2 * SECOND)
    return found


def test_where_launches_are_the_cost_all_lengths_share_a_queue() -> None:
    found = buckets(surface(flat=5, per_token=0.0001), [100, 100, 100])
    assert found.groups == [(0, 1, 2)]


def test_where_tokens_are_the_cost_each_bucket_has_a_queue() -> None:
    found = buckets(surface(flat=0.01), [4000, 4000, 4000])
    assert found.groups == [(0,), (1,), (2,)]


def test_where_only_equals_share_a_run_no_buckets_share_a_queue() -> None:
    lengths = Lengths((16, 64), surface(flat=5, per_token=0.0001, longest=(16, 64)), "bucket")
    alone = Buckets(lengths, ms(50), "grouped")
    assert not alone.regroup(SECOND)
    assert alone.groups == [(0,), (1,)]


def test_a_queue_plans_with_the_time_that_nine_of_ten_batches_keep() -> None:
    rows = surface(flat=5, per_token=0.02)
    found = buckets(rows, [97, 2, 1])
    table = found.table((0, 1, 2))
    assert table[1] == rows[0][1]
    assert table[4] == rows[1][4]  # of four, one in nine has a longer one
    assert list(table) == sorted(table)


def test_a_batch_is_no_larger_than_where_a_request_costs_the_least() -> None:
    """Four cost a launch, and every one more another half."""
    full = latency_table([ms(1), ms(1), ms(1), ms(1), ms(1.5), ms(2), ms(2.5), ms(3)])
    assert well_used(full) == 4
    lengths = Lengths((16,), (full,))
    model = ModelSpec(0, "m", ms(50), full, None, lengths)
    done = played([(0.0, 16) for _ in range(8)], cluster([model], 1))
    assert [len(batch) for batch in lengths_by_batch(done)] == [4, 4]


def test_who_is_too_long_to_be_in_time_leaves_the_place_to_others() -> None:
    """The queue plans with short ones, which most are; a long one that cannot be in time costs nobody any."""
    setup = setup_with_lengths(slo=6, flat=5, per_token=0.03)
    short = [(place * 7.0, 16) for place in range(60)]
    done = played([*short, (421, 256), (421.1, 16)], setup)
    outcomes = zip(done.case.requests, done.state.ledger.outcome, strict=True)
    assert [one.length for one, outcome in outcomes if outcome != Outcome.IN_TIME] == [256]


def busy(together: Together = "padded", rate: str = "6000/s") -> Any:
    workload = {"rate": rate, "duration": "500ms", "lengths": {"samples": [10, 12, 16, 60, 200]}}
    return texts(workload=workload, profile={"together": together})


def test_under_load_batches_are_of_like_lengths() -> None:
    mine, eager = (summarize(run(busy().with_policy(name))) for name in ("astrarium", "eager"))
    assert mine.padding is not None
    assert eager.padding is not None
    assert mine.padding < 0.75 * eager.padding
    assert mine.goodput_rate > 1.3 * eager.goodput_rate


@pytest.mark.parametrize("together", ["bucket", "length"])
def test_those_who_cannot_share_a_run_never_leave_together(together: Together) -> None:
    record = run(busy(together).with_policy("astrarium"), "python")
    of = record.requests
    kinds: dict[int, set[int]] = {}
    for batch, length in zip(of.batch.tolist(), of.length.tolist(), strict=True):
        kinds.setdefault(batch, set()).add(
            length if together == "length" else [16, 64, 256].index(rounded(length))
        )
    assert max(len(some) for batch, some in kinds.items() if batch >= 0) == 1
    assert record.batches.size.max() > 1


def rounded(length: int) -> int:
    return next(longest for longest in (16, 64, 256) if longest >= length)


def test_what_is_planned_is_what_is_true_so_nobody_is_late() -> None:
    """With estimates that are exact, a request is in time, or given up before it costs anything."""
    record = run(busy(rate="12000/s").with_policy("astrarium"), "python")
    assert Outcome.LATE not in record.requests.outcome
    assert (record.requests.outcome == Outcome.IN_TIME).mean() > 0.5
    assert ms(50) >= (record.requests.done - record.requests.arrival)[record.requests.outcome == 1].max()
