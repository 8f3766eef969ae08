"""Nexus: plans for every GPU and epoch, frontends in rotation, early drop."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND
from astrarium.serving.contract import (
    EXPIRED,
    SACRIFICED,
    Dispatch,
    Drop,
    GpuJoined,
    GpuLeft,
    ModelSpec,
    Network,
)
from astrarium.serving.ledger import Outcome
from astrarium.serving.policies.nexus import Ring
from astrarium.serving.policies.nexus.plan import (
    GpuLoads,
    PackingProfile,
    RateShare,
    plan,
    residual,
    settle,
    whole,
)
from astrarium.testing.serving.cases import cluster, linear_model
from tests.support.rival_runs import MS, SteppedPolicy, bad_rate, inception_resnet, ms, resnet50, simulated

MODEL = linear_model(1 * MS, 5 * MS, 25 * MS, max_batch=20)  # two batches of six fit in 23 ms


def profile(
    model: int = 0, alpha: float = 1.053, beta: float = 5.072, slo: float = 25, largest: int = 6
) -> PackingProfile:
    return PackingProfile(model, ms(slo), [0, *(ms(alpha * size + beta) for size in range(1, 20))], largest)


def per_ns(rate: float) -> float:
    return rate / SECOND


def planned(nodes: list[GpuLoads]) -> list[dict[int, int]]:
    return [node.batches() for node in nodes]


class TestPlan:
    def test_a_model_fills_whole_gpus_and_shares_the_rest_of_its_rate(self) -> None:
        nodes = plan([profile()], [per_ns(1200)], 8, spread=False)
        # 526.8 requests/s on each full GPU; of 146.4 requests/s, three arrive in 25 ms less their 8.2.
        assert planned(nodes) == [{0: 6}, {0: 6}, {0: 3}]
        assert nodes[0].throughputs()[0] * SECOND == pytest.approx(526.8, abs=0.1)

    def test_spread_uses_every_gpu_alike(self) -> None:
        nodes = plan([profile()], [per_ns(1200)], 8, spread=True)
        assert planned(nodes) == [{0: 6}] * 8
        assert len({node.throughputs()[0] for node in nodes}) == 1

    def test_the_batch_of_a_residual_load_waits_no_longer_than_its_slo_allows(self) -> None:
        for rate in (1, 30, 100, 250, 500):
            load = residual(profile(), per_ns(rate))
            size = load.batch(load.duty)
            assert load.duty + profile().costs[size] <= profile().slo
            assert profile().costs[size] <= load.duty

    def test_two_small_loads_share_a_gpu_and_squeeze_their_batches(self) -> None:
        both = [profile(0), profile(1, alpha=1, beta=4, slo=60, largest=10)]
        nodes = plan(both, [per_ns(60), per_ns(60)], 8, spread=False)
        assert planned(nodes) == [{0: 2, 1: 2}]
        alone = residual(both[1], per_ns(60))
        assert alone.batch(alone.duty) == 4
        assert nodes[0].duty == min(residual(one, per_ns(60)).duty for one in both)

    def test_a_shared_gpu_is_never_planned_beyond_its_time(self) -> None:
        models = [profile(n, alpha=0.5 + n / 7, beta=1 + n, slo=30 + 3 * n, largest=3) for n in range(9)]
        nodes = plan(models, [per_ns(20 + 9 * n) for n in range(9)], 20, spread=False)
        assert max(len(node.loads) for node in nodes) > 1
        assert sorted(set().union(*(node.models for node in nodes))) == list(range(9))
        for node in nodes:
            costs = [models[model].costs[size] for model, size in node.batches().items()]
            assert sum(costs) <= node.duty * 1.000001

    def test_a_load_goes_where_it_fits_most_tightly(self) -> None:
        big = profile(0)
        small = profile(1, alpha=0.1, beta=0.4, slo=25, largest=19)
        crowded = plan([big, profile(2), small], [per_ns(300), per_ns(200), per_ns(5)], 8, spread=False)
        assert [node.models for node in crowded] == [{0, 1}, {2}]

    def test_too_much_is_scaled_down_for_all(self) -> None:
        both = [profile(0), profile(1)]
        nodes = plan(both, [per_ns(3000), per_ns(1500)], 6, spread=False)
        assert Counter(model for node in nodes for model in node.models) == {0: 4, 1: 2}

    def test_more_models_than_any_cycle_can_hold_take_turns_everywhere(self) -> None:
        crowd = [profile(n, slo=14, largest=1) for n in range(5)]
        assert planned(plan(crowd, [per_ns(1)] * 5, 2, spread=True)) == [dict.fromkeys(range(5), 1)] * 2

    def test_gpus_left_over_go_to_the_busiest_model(self) -> None:
        # Two batches do not fit in 14 ms: no GPU can be shared, and no factor uses the third.
        both = [profile(0, slo=14, largest=1), profile(1, slo=14, largest=1)]
        nodes = plan(both, [per_ns(90), per_ns(100)], 3, spread=True)
        assert Counter(model for node in nodes for model in node.models) == {0: 1, 1: 2}

    def test_models_stay_where_they_were(self) -> None:
        nodes = [GpuLoads([whole(profile(model))]) for model in (0, 1, 2)]
        places = settle(nodes, [3, 4, 5], {3: {2}, 5: {0}})
        assert {gpu: node.models for gpu, node in places.items()} == {3: {2}, 4: {0}, 5: {1}}

    def test_batches_are_rounded_up_but_for_a_trace(self) -> None:
        load = RateShare(profile(), 1.0, 10.0)
        assert [load.batch(duty) for duty in (0.1, 2.0, 2.0005, 2.01, 50.0)] == [1, 2, 2, 3, 6]


class TestRing:
    def test_equal_weights_are_plain_rotation(self) -> None:
        ring = Ring([(2, 5.0), (4, 5.0), (7, 5.0)], start=1)
        assert [ring.pick() for _ in range(6)] == [4, 7, 2, 4, 7, 2]

    def test_weights_are_kept_without_bursts(self) -> None:
        ring = Ring([(0, 3.0), (1, 1.0), (2, 3.0)], start=0)
        picks = [ring.pick() for _ in range(700)]
        assert Counter(picks) == {0: 300, 1: 100, 2: 300}
        assert all(one != other for one, other in pairwise(picks))


def stepped(gpus: int = 1, models: tuple[ModelSpec, ...] = (MODEL,), **parameters: Any) -> SteppedPolicy:
    return SteppedPolicy("nexus", cluster(models, gpus), **parameters)


def test_requests_rotate_and_a_gpu_never_waits() -> None:
    at = stepped(gpus=2)
    assert at.arrive(0, 0) == [Dispatch(0, (0,), 0)]
    assert at.arrive(1, 1) == [Dispatch(1, (1,), ms(1))]
    assert at.arrive(2, 2) == []
    assert at.finish(6, 0) == [Dispatch(0, (2,), ms(6))]


def test_no_more_than_the_planned_batch_is_taken() -> None:
    at = stepped()
    at.arrive(0, 0)
    at.arrive(1, *range(1, 9))
    assert at.finish(6, 0) == [Dispatch(0, (1, 2, 3, 4, 5, 6), ms(6))]


def test_heads_that_would_be_late_in_the_planned_batch_are_dropped() -> None:
    at = stepped()
    at.arrive(0, 0)
    # Six from 6 ms on end at 17 ms; request 1 could have been in time alone, request 2 in no way.
    at.hear(1, *at.requests(1, [1], slo=15.9), *at.requests(1, [2], slo=10.9), *at.requests(1, range(3, 9)))
    expected = [Drop(2, EXPIRED), Drop(1, SACRIFICED), Dispatch(0, (3, 4, 5, 6, 7, 8), ms(6))]
    assert at.finish(6, 0) == expected


def test_with_fewer_left_the_batch_is_shorter_and_more_is_in_time() -> None:
    at = stepped()
    at.arrive(0, 0)
    # Three from 6 ms on end at 14 ms: request 1 is dropped. Two end at 13 ms: request 2 is in time.
    at.hear(1, *at.requests(1, [1], slo=11.9), *at.requests(1, [2], slo=12.5), *at.requests(1, [3]))
    assert at.finish(6, 0) == [Drop(1, SACRIFICED), Dispatch(0, (2, 3), ms(6))]


def test_models_take_turns_on_a_gpu() -> None:
    two = (MODEL, linear_model(1 * MS, 5 * MS, 25 * MS, max_batch=20))
    at = stepped(models=two)
    at.arrive(0, 0)
    at.arrive(1, 1, 2, 3, 4)
    at.arrive(2, 5, model=1)
    first = at.finish(6, 0)
    second = at.finish(13, 0)
    third = at.finish(19, 0)
    assert [action.requests[0] for [action] in (first, second) if isinstance(action, Dispatch)] == [1, 5]
    assert third


def test_uncoordinated_frontends_may_choose_the_same_gpu() -> None:
    alone = stepped(gpus=4)
    together = stepped(gpus=4, frontends=3)
    alone.arrive(0, *range(12))
    together.arrive(0, *range(12))
    assert _bound(alone) == [3, 3, 3, 3]
    assert sum(_bound(together)) == 12
    assert max(_bound(together)) > 3


def _bound(at: SteppedPolicy) -> list[int]:
    """Requests on each GPU, running or waiting."""
    running = [sum(len(batch.requests) for batch in gpu.batches) for gpu in at.state.gpus]
    waiting = [sum(map(len, backend.queues.values())) for backend in at.policy._gpu_queues]
    return [sum(pair) for pair in zip(running, waiting, strict=True)]


def test_the_first_plan_is_for_equal_rates_and_the_next_for_measured_ones() -> None:
    small = linear_model(1 * MS, 5 * MS, 25 * MS, max_batch=20)
    at = stepped(gpus=4, models=(MODEL, small))
    assert _replicas(at) == [2, 2]
    at.arrive(0, *range(80))
    assert at.timers["epoch"] == SECOND
    at.arrive(1, *range(80, 90), model=1)
    at.wake("epoch")
    assert _replicas(at) == [4, 1]  # with rates of 80 to 10, the second model needs half a GPU


def _replicas(at: SteppedPolicy) -> list[int]:
    """For each model, the GPUs on which it is planned."""
    return [sum(model in planned for planned in at.policy._batches) for model in range(len(at.setup.models))]


def test_epochs_end_when_requests_do() -> None:
    at = stepped(epoch="2s")
    at.arrive(5, 0)
    assert at.timers["epoch"] == ms(1005)
    at.finish(11, 0)
    at.timers.clear()
    at.hear(1005)
    assert at.timers == {}
    at.arrive(9000, 1)
    assert at.timers["epoch"] == ms(11000)


def test_the_queue_of_a_gpu_that_leaves_moves_to_the_others() -> None:
    at = stepped(gpus=2)
    at.arrive(0, 0, 1)
    at.arrive(1, 2, 3)
    assert at.hear(2, GpuLeft(0)) == []
    assert at.finish(6, 1) == [Dispatch(1, (2, 3), ms(6))]
    assert at.state.ledger.outcome[0] == Outcome.FAILED


def test_without_gpus_requests_wait_for_one_until_it_is_too_late() -> None:
    at = stepped()
    at.hear(0, GpuLeft(0))
    assert at.arrive(1, 0) == []
    assert at.hear(3, GpuJoined(0)) == [Dispatch(0, (0,), ms(3))]
    at.hear(4, GpuLeft(0))
    assert at.arrive(5, 1) == []
    assert at.timers["hopeless"] == ms(5 + 25 - 6) + 1
    assert at.wake("hopeless") == [Drop(1, EXPIRED)]


def test_network_delays_count() -> None:
    at = SteppedPolicy("nexus", cluster([MODEL], 1, Network(ms(1), ms(0.5), ms(2))))
    assert at.arrive(0, 0) == [Dispatch(0, (0,), ms(1.5))]
    at.arrive(1, *range(1, 9))
    # Two batches of four, each 3 ms on the way and 9 ms at work, would not fit in 23 ms: three do.
    assert at.finish(7.5, 0) == [Dispatch(0, (1, 2, 3), ms(10))]


@pytest.mark.parametrize(("field", "value"), [("epoch", "10"), ("epoch", "0s"), ("reserve", "-2ms")])
def test_bad_durations_are_refused(field: str, value: str) -> None:
    wrong: dict[str, Any] = {field: value}
    with pytest.raises(InputError, match=field):
        stepped(**wrong)


def test_goodput() -> None:
    """Symphony's paper: 4027 and 618 requests/s on 8 GPUs."""
    assert bad_rate("nexus", resnet50(), 3850, 6) <= 0.01
    assert bad_rate("nexus", resnet50(), 4300, 6) > 0.01
    assert bad_rate("nexus", inception_resnet(), 580, 20) <= 0.01
    assert bad_rate("nexus", inception_resnet(), 690, 20) > 0.01


def test_eight_frontends_cost_goodput() -> None:
    assert bad_rate("nexus", inception_resnet(), 560, 20, frontends=8) > 0.01


def test_overload_keeps_the_planned_batch() -> None:
    """Eight GPUs at 526.8 requests/s, whatever is offered."""
    state = simulated("nexus", cluster([resnet50()], 8), 6000, 3)
    answered = sum(outcome == Outcome.IN_TIME for outcome in state.ledger.outcome)
    assert answered / 3 == pytest.approx(8 * 526.8, rel=0.03)


def test_without_spreading_a_light_load_leaves_gpus_unused() -> None:
    state = simulated("nexus", cluster([resnet50()], 8), 900, 4, spread=False)
    late = [
        gpu
        for gpu, at in zip(state.ledger.batch_gpu, state.ledger.batch_dispatched, strict=True)
        if at > 1.1 * SECOND  # requests stay where they were bound
    ]
    assert set(late) == {0, 1}
