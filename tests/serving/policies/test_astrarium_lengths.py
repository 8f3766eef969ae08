"""Ours, by length: who leaves together, and who need not wait for whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from astrarium.serving.contract import Setup, Together
from astrarium.serving.ledger import Outcome
from astrarium.serving.level import run
from astrarium.serving.report.summary import summarize
from astrarium.testing.serving import ServingPolicyConformance
from astrarium.testing.serving.cases import Case, Run
from tests.serving.scenario.texts import requests_of, setup_with_lengths, texts
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
