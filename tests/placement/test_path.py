"""The path of a request: client, router, network, node, queue, GPUs and back; replicas over several GPUs."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.quantities import FOREVER, MILLISECOND, SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.placement.evaluation import (
    TimeSpread,
    evaluate,
    stage_report,
    walked,
)
from astrarium.placement.path import STAGES, Delay, Path, Payload, routed
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.problem import (
    ALONE,
    Form,
    PlacedModel,
    PlacementGpu,
    PlacementRequests,
    Problem,
    Shape,
)
from astrarium.placement.worker_queues import Batching
from astrarium.serving.report.stages import stage_table
from tests.support.placement.plans import poisson

MS = MILLISECOND
AT_ONCE = Batching(max_wait=0)
PIPELINE = Shape(stages=2)
SPLIT = Shape(operators=2)


def gpus(count: int) -> tuple[PlacementGpu, ...]:
    return tuple(PlacementGpu(id_, 1000) for id_ in range(count))


def model(
    index: int, name: str, *stages: tuple[Time, ...], shape: Shape = ALONE, **fields: Any
) -> PlacedModel:
    form = Form(shape, tuple((0, *times) for times in stages), (1,) * len(stages))
    defaults = {"slo": 100 * MS, "rate": 10.0} | fields
    return PlacedModel(index, name, forms={shape: form}, **defaults)


def requests(*arrivals: tuple[Time, int]) -> PlacementRequests:
    return PlacementRequests(tuple(at for at, _ in arrivals), tuple(model for _, model in arrivals))


class Halved:
    """Everybody at half the pace while there is company."""

    def slowdowns(self, gpu: PlacementGpu, company: Any) -> tuple[float, ...]:
        busy = sum(tenant.busy for tenant in company)
        return tuple(2.0 if tenant.busy and busy > 1 else 1.0 for tenant in company)


def sent(path: Path, instants: list[Time], sizes: list[int]) -> list[tuple[int, list[int], Time]]:
    batches = routed(path, "a", range(len(instants)), instants, sizes)
    return [(place, batch.members, batch.complete) for place, batch in batches]


def test_a_batch_leaves_when_it_is_full_or_its_first_has_waited_enough() -> None:
    """0, 1, 2 fill a batch; 3 waits until 13, when 13 itself still joins; 14 and 30 stay alone."""
    batches = sent(Path(max_wait=10), [0, 1, 2, 3, 13, 14, 30], [3])
    assert batches == [(0, [0, 1, 2], 2), (0, [3, 4], 13), (0, [5], 24), (0, [6], 40)]


def test_replicas_take_turns_and_get_load_by_their_batches() -> None:
    """As in section 6.2.1 of the thesis: of batches of 9, 5, 5 and 5, the first replica gets 9 of 24."""
    batches = sent(Path(), list(range(240)), [9, 5, 5, 5])
    assert [place for place, _, _ in batches[:5]] == [0, 1, 2, 3, 0]
    assert sum(len(members) for place, members, _ in batches if place == 0) == 90


LONG = Path(
    max_wait=8 * MS,
    client=Delay(MS),
    transfer=Delay(2 * MS, per_byte=0.5),
    node=Delay(0, per_request=MS // 2),
    reply=Delay(per_byte=1.0),
    payloads={"a": Payload(2 * MS, 3 * MS)},
)


def test_every_leg_takes_what_was_said() -> None:
    """0 and 3 fill a batch at the router at 4. 2 ms and half of 4 MB later it is at the node (8), at the
    queue 1 ms later (9), done at 19, and its 6 MB are back at 25. The next is alone: from 4 it waits until
    13, moves until 16, is queued at 16.5 and waits until 19, and is back at 28."""
    problem = Problem((model(0, "a", (6 * MS, 10 * MS)),), gpus(1))
    plan = Plan("hand", (Replica(0, (0,), batch=2),))
    result = evaluate(problem, plan, requests((0, 0), (3 * MS, 0), (4 * MS, 0)), path=LONG).of("a")
    assert result.stages["client"] == TimeSpread.of([MS] * 3)
    assert result.stages["gather"] == TimeSpread.of([3 * MS, 0, 8 * MS])
    assert result.stages["transfer"] == TimeSpread.of([4 * MS, 4 * MS, 3 * MS])
    assert result.stages["node"] == TimeSpread.of([MS, MS, MS // 2])
    assert result.stages["queue"] == TimeSpread.of([0, 0, 5 * MS // 2])
    assert result.stages["execution"] == TimeSpread.of([10 * MS, 10 * MS, 6 * MS])
    assert result.stages["reply"] == TimeSpread.of([6 * MS, 6 * MS, 3 * MS])
    assert result.latency == TimeSpread.of([25 * MS, 22 * MS, 24 * MS])


def test_a_worker_never_makes_larger_batches_of_those_that_wait() -> None:
    problem = Problem((model(0, "a", (6 * MS, 10 * MS)),), gpus(1))
    plan = Plan("hand", (Replica(0, (0,), batch=2),))
    result = evaluate(problem, plan, requests((0, 0), (MS, 0), (2 * MS, 0)), path=Path(max_wait=0)).of("a")
    assert result.mean_batch == 1
    assert result.latency == TimeSpread.of([6 * MS, 11 * MS, 16 * MS])


def test_a_short_message_may_overtake_a_long_one() -> None:
    problem = Problem((model(0, "a", (6 * MS, 10 * MS)),), gpus(1))
    path = Path(max_wait=MS, transfer=Delay(per_request=5 * MS))
    plan = Plan("hand", (Replica(0, (0,), batch=2),))
    walk = walked(problem, plan, requests((0, 0), (0, 0), (MS, 0)), path=path)
    assert walk.start.tolist() == [13 * MS, 13 * MS, 7 * MS]


def test_the_report_tells_stages_in_the_order_of_the_way() -> None:
    problem = Problem((model(0, "a", (6 * MS,)), model(1, "b", (6 * MS,))), gpus(1))
    plan = Plan("hand", (Replica(0, (0,)), Replica(1, (0,))))
    along = evaluate(problem, plan, requests((0, 0)), path=LONG)
    assert [(line.model, line.stage) for line in stage_report(along)] == [("a", stage) for stage in STAGES]
    assert sum(line.part for line in stage_report(along)) == pytest.approx(1)
    without = evaluate(problem, plan, requests((0, 0)))
    assert [line.stage for line in stage_report(without)] == ["gather", "queue", "execution"]


def test_who_has_missed_its_deadline_is_taken_out_of_its_batch() -> None:
    """Two batches of two, 20 ms each, and 25 ms of time: of the second one, whoever came at 0 is too late."""
    problem = Problem((model(0, "a", (19 * MS, 20 * MS), slo=25 * MS),), gpus(1))
    plan = Plan("hand", (Replica(0, (0,), batch=2),))
    arrivals = requests((0, 0), (0, 0), (0, 0), (10 * MS, 0))
    path = Path(transfer=Delay(6 * MS))
    dropping = evaluate(problem, plan, arrivals, batching=Batching(drop_expired=True), path=path).of("a")
    assert (dropping.in_time, dropping.late, dropping.dropped) == (0, 3, 1)
    assert dropping.latency == TimeSpread.of([26 * MS, 26 * MS, 35 * MS])


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 1)), max_size=40),
    st.integers(1, 4),
    st.integers(0, 30),
    st.booleans(),
    st.booleans(),
)
def test_every_request_ends_once_and_its_stages_add_up(
    drawn: list[tuple[int, int]], batch: int, wait: int, drop: bool, path: bool
) -> None:
    times = tuple((4 + b) * MS for b in range(1, 5))
    problem = Problem((model(0, "a", times), model(1, "b", times, times, shape=PIPELINE)), gpus(3))
    plan = Plan(
        "hand", (Replica(0, (0,), batch=batch), Replica(1, (1, 0), PIPELINE, batch), Replica(0, (2,)))
    )
    arrivals = requests(*sorted((at * MS, index) for at, index in drawn))
    way = msgspec.structs.replace(LONG, max_wait=wait * MS) if path else None
    report = evaluate(problem, plan, arrivals, Halved(), Batching(wait * MS, drop), path=way)
    assert report == evaluate(problem, plan, arrivals, Halved(), Batching(wait * MS, drop), path=way)
    for model_report in report.models:
        assert (
            model_report.in_time + model_report.late + model_report.dropped
            == model_report.requests
            == arrivals.models.count(model_report.model)
        )
        assert drop or model_report.dropped == 0
        if model_report.latency:
            assert model_report.latency.mean == pytest.approx(
                sum(spread.mean for spread in model_report.stages.values())
            )
    way_of = walked(problem, plan, arrivals, Halved(), Batching(wait * MS, drop), way)
    legs = np.stack([way_of.asked, way_of.routed, way_of.ready, way_of.moved, way_of.here, way_of.start])
    assert np.all(np.diff(legs[:, way_of.answered >= 0], axis=0) >= 0)


def test_batches_move_through_a_pipeline() -> None:
    """Stages of 10 and 4 ms: three at once end 14, 24 and 34 ms later."""
    problem = Problem((model(0, "a", (10 * MS,), (4 * MS,), shape=PIPELINE),), gpus(2))
    plan = Plan("hand", (Replica(0, (0, 1), PIPELINE),))
    result = evaluate(problem, plan, requests((0, 0), (0, 0), (0, 0)), batching=AT_ONCE).of("a")
    assert result.latency == TimeSpread.of([14 * MS, 24 * MS, 34 * MS])


def test_batches_wait_before_a_slower_second_stage() -> None:
    problem = Problem((model(0, "a", (4 * MS,), (10 * MS,), shape=PIPELINE),), gpus(2))
    plan = Plan("hand", (Replica(0, (0, 1), PIPELINE),))
    result = evaluate(problem, plan, requests((0, 0), (0, 0)), batching=AT_ONCE).of("a")
    assert result.latency == TimeSpread.of([14 * MS, 24 * MS])


def test_a_pipeline_is_md1_and_one_stage_more() -> None:
    """AlpaServe's two-stage case: 0.2 s a stage at 3 requests a second, 0.55 s on average; 40 000 requests,
    tolerance as stated."""
    stage = round(0.2 * SECOND)
    a = model(0, "a", (stage,), (stage,), shape=PIPELINE, rate=3.0, slo=FOREVER // 4)
    problem = Problem((a,), gpus(2))
    plan = Plan("hand", (Replica(0, (0, 1), PIPELINE),))
    arrivals = poisson(problem, 40_000 * SECOND // 3, stream(5, "arrivals").random)
    result = evaluate(problem, plan, arrivals, batching=AT_ONCE, warmup=100 * SECOND).of("a")
    assert result.latency is not None
    assert result.latency.mean / SECOND == pytest.approx(0.55, rel=0.02)


def test_a_model_split_over_gpus_is_one_server() -> None:
    problem = Problem((model(0, "a", (6 * MS,), shape=SPLIT),), gpus(2))
    plan = Plan("hand", (Replica(0, (0, 1), SPLIT),))
    result = evaluate(problem, plan, requests((0, 0), (0, 0)), batching=AT_ONCE).of("a")
    assert result.latency == TimeSpread.of([6 * MS, 12 * MS])


def test_only_those_that_share_a_gpu_slow_each_other() -> None:
    """b runs on the second stage's GPU: it slows a only there, from 10 until 14."""
    a = model(0, "a", (10 * MS,), (10 * MS,), shape=PIPELINE)
    problem = Problem((a, model(1, "b", (14 * MS,)), model(2, "c", (10 * MS,))), gpus(3))
    plan = Plan("hand", (Replica(0, (0, 1), PIPELINE), Replica(1, (1,)), Replica(2, (2,))))
    report = evaluate(problem, plan, requests((0, 0), (0, 1), (0, 2)), Halved(), AT_ONCE)
    assert report.of("a").latency == TimeSpread.of(
        [24 * MS]
    )  # alone until 10, half pace until 18, alone again
    assert report.of("b").latency == TimeSpread.of([18 * MS])
    assert report.of("c").latency == TimeSpread.of([10 * MS])


def test_a_split_model_is_as_fast_as_on_its_slowest_gpu() -> None:
    problem = Problem((model(0, "a", (10 * MS,), shape=SPLIT), model(1, "b", (3 * MS,))), gpus(2))
    plan = Plan("hand", (Replica(0, (0, 1), SPLIT), Replica(1, (1,))))
    report = evaluate(problem, plan, requests((0, 0), (0, 1)), Halved(), AT_ONCE)
    assert report.of("b").latency == TimeSpread.of([6 * MS])
    assert report.of("a").latency == TimeSpread.of([13 * MS])


def test_load_goes_by_the_slowest_stage_of_a_replica() -> None:
    """The pipeline does two while the other does one."""
    forms = {
        ALONE: Form(ALONE, ((0, 20 * MS),), (1,)),
        PIPELINE: Form(PIPELINE, ((0, 10 * MS), (0, 10 * MS)), (1, 1)),
    }
    problem = Problem((PlacedModel(0, "a", FOREVER // 4, 1.0, forms),), gpus(3))
    plan = Plan("hand", (Replica(0, (0,)), Replica(0, (1, 2), PIPELINE)))
    walk = walked(problem, plan, requests(*((0, 0) for _ in range(300))), batching=AT_ONCE)
    assert walk.answered.max() == pytest.approx(2 * SECOND, rel=0.01)


def test_the_table_names_a_model_once_and_tells_each_stage() -> None:
    problem = Problem((model(0, "a", (6 * MS,)), model(1, "b", (6 * MS,))), gpus(1))
    plan = Plan("hand", (Replica(0, (0,)), Replica(1, (0,))))
    report = evaluate(problem, plan, requests((0, 0), (0, 1)), path=LONG)
    attained = {model.name: model.attainment for model in report.models}
    columns = [list(column.cells) for column in stage_table(stage_report(report), attained).columns]
    assert [str(cell) for cell in columns[0] if str(cell)] == ["a", "b"]
    assert [cell for cell in columns[1] if cell] == ["100.00%", "100.00%"]
    assert columns[2] == [*STAGES, *STAGES]
    assert columns[4][columns[2].index("execution")] == "6.00"
