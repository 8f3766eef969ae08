"""TurboTransformers: the cut of the sorted queue that takes the least time, and when the queue is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.quantities import Time
from astrarium.serving.contract import Lengths, Request, Together
from astrarium.serving.level import run
from astrarium.serving.policies.turbo import cut
from astrarium.serving.record import ServingRecord
from astrarium.serving.report.summary import summarize
from astrarium.serving.scenario import build
from astrarium.testing.serving import ServingPolicyConformance
from astrarium.testing.serving.cases import Case
from tests.serving.scenario.texts import model_with_lengths, requests_of, setup_with_lengths, texts
from tests.support.rival_runs import ms


def known(together: Together = "padded", sizes: int = 4) -> Lengths:
    lengths = model_with_lengths(together=together, sizes=sizes, flat=1.0, per_token=0.01).lengths
    assert lengths is not None
    return lengths


def rising(lengths: Sequence[int]) -> list[Request]:
    of = known()
    return [
        Request(id_, 0, 0, ms(50), 0, length, of.bucket_of(length))
        for id_, length in enumerate(sorted(lengths))
    ]


def every_cut(requests: Sequence[Request], most: int) -> Iterator[list[Sequence[Request]]]:
    count = len(requests)
    for inner in range(count):
        for places in combinations(range(1, count), inner):
            edges = [0, *places, count]
            parts = [requests[low:high] for low, high in pairwise(edges)]
            if all(len(part) <= most for part in parts):
                yield parts


def cost(parts: Sequence[Sequence[Request]]) -> Time:
    tables = known().latency
    return sum(tables[max(request.bucket for request in part)][len(part)] for part in parts)


@given(lengths=st.lists(st.integers(1, 256), min_size=1, max_size=8))
def test_no_other_cut_takes_less_time(lengths: list[int]) -> None:
    requests = rising(lengths)
    parts = cut(requests, known())
    assert [request for part in parts for request in part] == requests
    assert cost(parts) == min(cost(other) for other in every_cut(requests, most=4))


def test_where_a_launch_costs_all_there_is_unequal_lengths_join() -> None:
    assert [len(part) for part in cut(rising([10, 60]), known())] == [2]


def test_a_long_request_goes_alone_where_the_others_would_pay_for_it() -> None:
    parts = cut(rising([16, 16, 16, 256]), known())
    assert [[request.length for request in part] for part in parts] == [[16, 16, 16], [256]]


def test_nothing_is_cut_into_nothing() -> None:
    assert cut([], known()) == []


def served(rate: str, trigger: str = "hungry", **sections: object) -> ServingRecord:
    policy = {"name": "turbo", "trigger": trigger}
    return run(texts(workload={"rate": rate, "duration": "500ms"}, policy=policy, **sections), "python")


def test_hungry_an_idle_gpu_leaves_nobody_waiting() -> None:
    record = served("100/s", cluster={"gpus": 8})
    batch = record.requests.batch
    assert (record.batches.dispatched[batch] == record.requests.arrival).all()


def test_lazy_the_oldest_waits_for_the_timeout() -> None:
    record = served("100/s", "lazy", cluster={"gpus": 8})
    waited = record.batches.dispatched[record.requests.batch] - record.requests.arrival
    assert waited.max() == ms(50) // 8
    assert record.batches.size.mean() > 1.2


def test_lazy_a_full_queue_does_not_wait() -> None:
    """Sixteen that come at once are as many as the largest batch holds."""
    setup = setup_with_lengths()
    played = TurboSuite().observe(Case(setup, requests_of(setup, [(1, 16)] * 16)))
    assert list(played.state.ledger.batch_dispatched) == [ms(1)]


def test_under_load_it_mixes_fewer_lengths_than_those_that_pad() -> None:
    mine = summarize(served("6000/s"))
    eager = summarize(run(texts(workload={"rate": "6000/s", "duration": "500ms"}, policy={"name": "eager"})))
    assert mine.goodput_rate > 1.2 * eager.goodput_rate


@pytest.mark.parametrize("together", ["bucket", "length"])
def test_only_those_who_can_share_a_run_leave_together(together: Together) -> None:
    lengths = {"samples": [10, 12, 16, 60, 200]}
    scenario = texts(
        profile={"together": together},
        workload={"rate": "6000/s", "duration": "300ms", "lengths": lengths},
        policy={"name": "turbo"},
    )
    record = run(scenario, "python")
    arrivals = build.arrivals(scenario).length
    kind = arrivals if together == "length" else np.searchsorted([16, 64, 256], arrivals)
    for number in range(len(record.batches.size)):
        assert len(set(kind[record.requests.batch == number].tolist())) <= 1
    assert record.batches.size.max() > 1


class TurboSuite(ServingPolicyConformance):
    policy = "turbo"
    parameters: ClassVar[dict[str, str]] = {"trigger": "lazy"}
    drops_hopeless = False
