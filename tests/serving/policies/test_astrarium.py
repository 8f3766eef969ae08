"""Our own policy, event by event and in whole runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from astrarium.core.errors import InputError
from astrarium.core.quantities import FOREVER, Time
from astrarium.serving.contract import (
    EXPIRED,
    SACRIFICED,
    Action,
    Dispatch,
    Drop,
    Event,
    ModelSpec,
    Network,
    Request,
    latency_table,
)
from astrarium.serving.ledger import Outcome
from astrarium.serving.policies._queue import Backlog
from astrarium.serving.policies.astrarium import Astrarium
from astrarium.serving.policies.astrarium.pressure import Climate
from astrarium.serving.policies.astrarium.queues import RequestQueue
from astrarium.serving.scenario import build, parse
from astrarium.serving.state import ServingState
from astrarium.testing.serving.cases import Case, Run, cluster, linear_model, with_truth
from astrarium.testing.serving.strategies import NO_DELAY, cases, gpu_changes
from tests.support.cases import run_case
from tests.support.rival_runs import SteppedPolicy, bad_rate, ms, resnet50, simulated


def model(slo: float = 40, max_batch: int = 8) -> ModelSpec:
    """l(b) = b + 5 ms."""
    return linear_model(ms(1), ms(5), ms(slo), max_batch)


def stepped(
    *models: ModelSpec, gpus: int = 1, network: Network | None = None, **parameters: Any
) -> SteppedPolicy:
    return SteppedPolicy("astrarium", cluster(models or [model()], gpus, network), **parameters)


def run(case: Case, **parameters: Any) -> Run:
    return run_case(case, Astrarium(case.setup, Astrarium.Parameters(**parameters)))


@given(
    rises=st.lists(st.sampled_from([0, 1, 1, 2]), min_size=3, max_size=8),
    due=st.lists(st.integers(6, 20), max_size=12),
    network=st.builds(Network, st.integers(0, 2), st.integers(0, 1)),
    free=st.sampled_from([0, 8, 10]),
)
def test_a_line_gathers_as_a_window_does(
    rises: list[int], due: list[int], network: Network, free: Time
) -> None:
    """Its shortcut finds what the search finds where all fit together, and is not taken where they do not."""
    spec = ModelSpec(0, "steps", 40, latency_table(list(accumulate(rises, initial=3))[1:]))
    queue = RequestQueue(spec, network, Astrarium.Parameters(lookahead=False))
    for place, deadline in enumerate(due):
        queue.insert(Request(place, 0, 0, deadline))
    ready = [network.delay(b) + t for b, t in enumerate(spec.latency)]
    expected = Backlog(sorted(due), ready, spec.latency).gather_window(queue.stance.hold, 5, free)
    assert (len(queue.gather(5, free)), queue.size) == expected


@pytest.mark.parametrize("gpus", [1, 2])
def test_on_idle_gpus_a_lone_request_leaves_at_once(gpus: int) -> None:
    """Whatever the model, at the start and when rates have been measured."""
    at = stepped(model(slo=12), model(slo=200), model(), gpus=gpus)
    for number in range(60):
        now = 40 * number
        assert at.arrive(now, number, model=number % 3) == [Dispatch(0, (number,), ms(now))]
        at.finish(now + 6, 0, started=now)


@pytest.mark.parametrize(("gpus", "rate"), [(1, 10), (2, 80), (8, 500)])
def test_at_light_load_every_batch_is_that_of_eager(gpus: int, rate: float) -> None:
    setup = cluster([resnet50(), model(slo=100)], gpus)
    ours, theirs = (simulated(name, setup, rate, 4).ledger for name in ("astrarium", "eager"))
    assert list(ours.batch) == list(theirs.batch)
    assert list(ours.batch_dispatched) == list(theirs.batch_dispatched)
    assert list(ours.batch_gpu) == list(theirs.batch_gpu)


def test_preferring_few_gpus_fewer_are_used() -> None:
    setup = cluster([resnet50()], 8)
    used = {
        prefer: len(set(simulated("astrarium", setup, 1500, 3, prefer=prefer).ledger.batch_gpu))
        for prefer in ("latency", "few-gpus")
    }
    assert used["few-gpus"] < used["latency"] == 8


def test_preferring_few_gpus_a_lone_request_waits_four_fifths_of_the_way() -> None:
    """Due at 12, it could be joined until 12 - l(2) = 5."""
    at = stepped(model(slo=12), prefer="few-gpus")
    assert at.arrive(0, 0) == []
    assert at.timers == {"wake": ms(4)}
    assert at.wake("wake") == [Dispatch(0, (0,), ms(4))]


@pytest.mark.parametrize(("patience", "opens"), [(0.5, 2.5), (1.0, 5.0)])
def test_a_given_patience_is_a_share_of_the_way(patience: float, opens: float) -> None:
    at = stepped(model(slo=12), patience=patience)
    assert at.arrive(0, 0) == []
    assert at.timers == {"wake": ms(opens)}
    assert at.wake("wake") == [Dispatch(0, (0,), ms(opens))]


def test_without_patience_a_request_leaves_at_once() -> None:
    assert stepped(patience=0.0).arrive(0, 0) == [Dispatch(0, (0,), 0)]


def test_a_full_batch_never_waits() -> None:
    for patience in (None, 0.0, 0.5, 1.0):
        assert stepped(patience=patience).arrive(0, *range(8)) == [Dispatch(0, tuple(range(8)), 0)]


def test_the_way_begins_at_the_heads_arrival_and_ends_a_network_delay_early() -> None:
    """Due at 11 on the GPU, l(2) = 7 and an input of 0.25: frontrun is 3.75, of which 0.8 are 3.0; the order
    takes 1.25."""
    at = stepped(model(slo=12), network=Network(ms(1), ms(0.25), ms(1)), prefer="few-gpus")
    at.arrive(0, 0)
    assert at.timers == {"wake": ms(3.0 - 1.25)}
    assert at.wake("wake") == [Dispatch(0, (0,), ms(3.0))]


@pytest.mark.parametrize(("patience", "rival"), [(0.0, "eager"), (1.0, "deferred")])
@pytest.mark.parametrize("rate", [100, 1500])
def test_where_nobody_is_lost_the_extremes_are_eager_and_deferred(
    patience: float, rival: str, rate: float
) -> None:
    setup = cluster([resnet50()], 8)
    ours = simulated("astrarium", setup, rate, 2, patience=patience).ledger
    theirs = simulated(rival, setup, rate, 2).ledger
    assert set(ours.outcome) == set(theirs.outcome) == {Outcome.IN_TIME}
    assert list(ours.batch) == list(theirs.batch)
    assert list(ours.batch_dispatched) == list(theirs.batch_dispatched)
    assert list(ours.batch_gpu) == list(theirs.batch_gpu)


class Busy(ServingState):
    def validate(self) -> None:
        super().validate()
        assert not (self.waiting and any(gpu.idle for gpu in self.gpus)), "a GPU idles while requests wait"


@bounded(max_examples=60)
@given(case=cases(delays=st.just(NO_DELAY)), lookahead=st.booleans())
def test_without_patience_no_gpu_idles_while_requests_wait(case: Case, lookahead: bool) -> None:
    policy = Astrarium(case.setup, Astrarium.Parameters(patience=0.0, lookahead=lookahead))
    run_case(case, policy, state=Busy(case.setup))


def crowded(at: SteppedPolicy, second: float = 2) -> None:
    """GPU 0 is busy until 13, GPU 1 (where there is one) until 13 after *second*. Request 1 can be saved
    alone at 13, and in no larger batch; seven others together if they leave by 16, due at 28."""
    assert len(at.arrive(0, *range(100, 108))) == 1
    if len(at.setup.gpus) > 1:
        assert len(at.arrive(second, *range(200, 208))) == 1
    at.arrive(5, 1, slo=14.5)
    at.arrive(5, *range(2, 9), slo=23)


def first_drop(at: SteppedPolicy) -> tuple[Time, list[Action]]:
    """When somebody is given up, and who, if nothing happens before."""
    while True:
        now = at.timers["wake"]
        if actions := at.wake("wake"):
            return now, actions


def test_nobody_is_given_up_before_a_gpu_is_at_hand() -> None:
    at = stepped()
    crowded(at)
    while at.timers["wake"] < ms(13):
        assert at.wake("wake") == []
    deferred = SteppedPolicy("deferred", at.setup)
    crowded(deferred)
    assert first_drop(deferred) == (ms(19.5 - 12) + 1, [Drop(1, SACRIFICED)])


def test_a_head_is_given_up_for_those_that_a_later_gpu_would_lose() -> None:
    """After request 1 alone the GPU is free at 19, where only four of the seven could be done in time."""
    at = stepped()
    crowded(at)
    assert at.finish(13, 0) == [Drop(1, SACRIFICED), Dispatch(0, tuple(range(2, 9)), ms(13))]


def test_nobody_is_given_up_if_another_gpu_is_soon_free() -> None:
    at = stepped(gpus=2)
    crowded(at)
    assert at.finish(13, 0) == [Dispatch(0, (1,), ms(13))]
    (sent,) = at.finish(15, 1, started=2)
    assert sent == Dispatch(1, tuple(range(2, 9)), ms(15))


def test_another_gpu_that_is_free_too_late_does_not_help() -> None:
    at = stepped(gpus=2)
    crowded(at, second=4.9)  # until 17.9, where two of the seven would be lost
    assert at.finish(13, 0)[0] == Drop(1, SACRIFICED)


def test_other_open_lines_are_expected_to_take_the_next_gpus_first() -> None:
    """As where another GPU is soon free, but a second model has a candidate that may leave: the next GPU is
    its, and ours the one at 19."""
    at = stepped(model(), model(slo=200), gpus=2, patience=0.0)
    crowded(at)
    at.arrive(6, 300, model=1)
    assert at.finish(13, 0) == [Drop(1, SACRIFICED), Dispatch(0, tuple(range(2, 9)), ms(13))]


def test_without_lookahead_heads_are_given_up_at_once() -> None:
    """As soon as they stand in the way of a batch that is large enough to hold for, here six."""
    at = stepped(lookahead=False)
    crowded(at)
    assert first_drop(at) == (ms(19.5 - 11) + 1, [Drop(1, SACRIFICED)])


def test_a_blocked_candidate_takes_the_first_gpu_however_patient() -> None:
    """Behind a head that stands in the way, it may leave at once; without it, not before 28 - l(8) = 15."""
    at = stepped(patience=1.0)
    crowded(at)
    assert at.finish(13, 0)[-1] == Dispatch(0, tuple(range(2, 9)), ms(13))
    alone = stepped(patience=1.0)
    alone.arrive(0, *range(100, 108))
    alone.arrive(5, *range(2, 9), slo=23)
    assert alone.finish(13, 0) == []
    assert alone.timers["wake"] == ms(15)


def test_the_hopeless_are_dropped_at_the_first_moment_it_is_certain() -> None:
    at = stepped()
    at.arrive(0, *range(100, 108))
    assert at.arrive(1, 1, slo=5.99) == [Drop(1, EXPIRED)]
    at.arrive(1, 2, slo=11)  # due at 12: it must leave by 6
    assert first_drop(at) == (ms(6) + 1, [Drop(2, EXPIRED)])


@pytest.mark.parametrize(("overload", "expected"), [(0.0, (0, 7)), (1.0, (1, 8))])
def test_overload_insists_on_the_target(overload: float, expected: tuple[int, int]) -> None:
    """Seven of a target of eight are enough, although two are left who will be late for the next GPU; in
    overload, the one that stands in the way of a larger batch goes."""
    at = stepped()
    at.arrive(0, *range(100, 108))
    at.arrive(5, 1, slo=20)  # due at 25: with six others at 13
    at.arrive(5, *range(2, 10), slo=22)
    queue = at.policy._queues[0]
    queue.adapt(queue.demand(ms(5)), Climate(0.0, overload, 0.0))
    assert queue._target == 8
    actions = at.finish(13, 0)
    drops = [action for action in actions if isinstance(action, Drop)]
    (sent,) = [action for action in actions if isinstance(action, Dispatch)]
    assert (len(drops), len(sent.requests)) == expected


def test_many_losses_are_noticed_as_overload_and_forgotten_when_they_are_over() -> None:
    """Two come at a time: requests that came evenly would leave no doubt that all of the target pays."""
    at = stepped(model(slo=80), patience=0.0)
    queue = at.policy._queues[0]
    for number in range(0, 700, 2):
        now = 10 * number
        if number < 100:
            lost = [1000 + number, 1001 + number]
            assert at.arrive(now, *lost, slo=1) == [Drop(id_, EXPIRED) for id_ in lost]
        at.arrive(now, number, number + 1)
        at.finish(now + 7, 0, started=now)
        if number == 98:
            assert queue.stance.hold == queue._target == 8
    assert queue._target == 6  # l(b) + b / rate = b + 5 + 10 b
    assert queue.stance.hold == 5


@bounded(max_examples=60)
@given(case=cases(), percents=st.lists(st.integers(50, 200), min_size=1, max_size=3))
def test_only_for_a_batch_that_leaves_is_anybody_sacrificed(case: Case, percents: list[int]) -> None:
    for step in run(with_truth(case, percents)).steps:
        served = {
            case.requests[action.requests[0]].model for action in step.actions if isinstance(action, Dispatch)
        }
        for action in step.actions:
            if isinstance(action, Drop) and action.reason == SACRIFICED:
                assert case.requests[action.request].model in served


class Counting(Astrarium):
    """Counts after every decision."""

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        yield from super().decide(now, events, state)
        opened = [index for index in range(len(self._queues)) if self._latest[index] < FOREVER]
        assert self._open == len(opened)
        for index, queue in enumerate(self._queues):
            assert (index in opened) <= (0 < queue.size <= len(queue.requests))
            assert (index in opened) == (self._delays[index] < FOREVER)
            assert (self._wake[index] < FOREVER) == bool(queue.size)
            assert sorted(queue.deadlines) == queue.deadlines


@bounded(max_examples=80)
@given(data=st.data(), case=cases(max_models=6, own_deadlines=True), lookahead=st.booleans())
def test_open_candidates_are_counted_right(data: st.DataObject, case: Case, lookahead: bool) -> None:
    patience = data.draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
    changes = data.draw(gpu_changes(case)) if data.draw(st.booleans()) else ()
    wrong = with_truth(case, data.draw(st.lists(st.integers(50, 200), min_size=1, max_size=3)))
    policy = Counting(case.setup, Counting.Parameters(patience=patience, lookahead=lookahead))
    run_case(Case(case.setup, case.requests, changes, wrong.truth), policy)


@pytest.mark.parametrize(("gpus", "rate", "seconds"), [(1, 400, 10), (8, 5400, 2)])
def test_one_percent_is_lost_later_than_by_deferred_or_eager(gpus: int, rate: float, seconds: float) -> None:
    """Waiting does not pay on one GPU and does on eight."""
    lost = {
        name: bad_rate(name, resnet50(), rate, seconds, gpus) for name in ("astrarium", "deferred", "eager")
    }
    assert lost["astrarium"] < 0.01 < max(lost.values())
    assert lost["astrarium"] == min(lost.values())


def test_overload_is_answered_as_well_as_by_deferred() -> None:
    ours, theirs = (bad_rate(name, resnet50(), 7500, 2) for name in ("astrarium", "deferred"))
    assert ours < theirs + 0.01


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"patience": 2}, "policy.patience"),
        ({"patience": -0.1}, "policy.patience"),
        ({"patience": "much"}, "policy.patience"),
        ({"prefer": "gpus"}, "policy.prefer"),
        ({"lines": "x"}, "policy.lines"),
        ({"lookahead": 3}, "policy.lookahead"),
        ({"gather": "fcfs"}, "policy.gather"),
    ],
)
def test_bad_parameters_are_refused_by_name(parameters: dict[str, Any], field: str) -> None:
    raw = {
        "cluster": {"gpus": 1},
        "models": {"m": {"profile": {"alpha": "1ms", "beta": "5ms"}, "slo": "40ms"}},
        "policy": {"name": "astrarium", **parameters},
        "workload": {"arrivals": "poisson", "rate": "10/s", "duration": "1s"},
    }
    with pytest.raises(InputError) as caught:
        build_policy(raw)
    assert caught.value.field == field


def build_policy(raw: dict[str, Any]) -> None:
    case = parse(raw)
    build.policy(case, build.setup(case))
