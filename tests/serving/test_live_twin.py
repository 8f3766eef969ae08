"""The native twin at work live decides as the policy itself does, whatever happens to the GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.choice import parameters_of
from astrarium.core.quantities import MILLISECOND, Time
from astrarium.core.size_grid import SizeGrid
from astrarium.serving.contract import Dispatch, Lengths, RequestArrived, Setup, Together, latency_table
from astrarium.serving.policies import serving_policies
from astrarium.serving.policies.shepherd import Shepherd
from astrarium.serving.policies.window import Deferred, Eager
from astrarium.serving.twin.live import LiveTwin, faster
from tests.support.live_fakes import OpenModel, Stage

TWINNED = ("astrarium", "deferred", "eager", "orloj", "timeout")

Calls = Sequence[tuple[int, tuple[int, ...]]]  # the model that is called, and the shape of an item
PLAIN: Calls = [(0, (2,)), (1, (2,))]


def happenings(calls: Calls) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    return st.lists(
        st.one_of(
            st.tuples(st.just("call"), st.integers(0, len(calls) - 1), st.integers(1, 3)),
            st.tuples(st.just("wait"), st.integers(0, 30_000), st.just(0)),  # microseconds
            st.tuples(st.just("kill"), st.integers(0, 1), st.just(0)),
            st.tuples(st.just("slow"), st.sampled_from([1, 2]), st.just(0)),
        ),
        min_size=5,
        max_size=60,
    )


def policy_of(name: str, setup: Setup) -> Any:
    factory = serving_policies.get(name)
    return factory(setup, parameters_of(factory)())


def played(
    stage: Stage, script: list[tuple[str, int, int]], twin: bool, name: str, calls: Calls = PLAIN
) -> list[Any]:
    """The steps of a stage on which this happens."""

    def new_policy(setup: Setup) -> Any:
        return faster(policy_of(name, setup), setup) if twin else policy_of(name, setup)

    object.__setattr__(stage.plan, "new_policy", new_policy)
    assert isinstance(new_policy(stage.plan.setup), LiveTwin) is twin
    stage.coordinator.begin(stage.plan.setup)
    stage.wait(0)
    stage.steps.clear()
    for what, number, rows in script:
        match what:
            case "call":
                model, shape = calls[number]
                stage.call(model, rows, shape=shape)
            case "wait":
                stage.wait(number / 1000)
            case "kill":
                stage.workers.kill(number)
            case "slow":
                stage.workers.slower = float(number)
    stage.wait(2000)
    stage.check_the_accounts()
    return stage.steps


@pytest.mark.parametrize("name", TWINNED)
@given(script=happenings(PLAIN))
@settings(max_examples=60, deadline=None)
def test_step_for_step_the_same(name: str, script: list[tuple[str, int, int]]) -> None:
    one, other = (played(Stage(models=2, policy=name), script, twin, name) for twin in (False, True))
    assert one == other


GRID = SizeGrid(((8, 8), (8, 32), (32, 8), (32, 32)))
TEXTS: Calls = [*((0, (length,)) for length in (2, 9, 16, 17, 60, 64, 200)), (1, (2,))]
IMAGES: Calls = [*((0, shape) for shape in ((8, 8), (7, 8), (8, 30), (30, 8), (31, 32))), (1, (2,))]


def of_lengths(longest: Sequence[int], together: Together) -> Lengths:
    """Times by length: of one request 2 ms and more, of eight from 4 ms up to twice as much a bucket."""

    def table(place: int) -> tuple[Time, ...]:
        return latency_table([(2 + place + size * (1 + place) // 4) * MILLISECOND for size in range(1, 9)])

    return Lengths(tuple(longest), tuple(map(table, range(len(longest)))), together)


SHAPED: dict[str, tuple[OpenModel, Calls]] = {
    "padded": (OpenModel(of_lengths((16, 64, 256), "padded")), TEXTS),
    "bucket": (OpenModel(of_lengths((16, 64, 256), "bucket")), TEXTS),
    "length": (OpenModel(of_lengths((16, 64, 256), "length")), TEXTS),
    "sizes": (OpenModel(of_lengths(GRID.longest, "bucket"), GRID.sizes), IMAGES),
}


def both_played(kind: str, script: list[tuple[str, int, int]], name: str) -> list[Any]:
    """The steps of a stage whose first model's requests have lengths, the same of the policy and its twin."""
    known, calls = SHAPED[kind]
    one, other = (
        played(Stage(models=2, policy=name, open_model=known), script, twin, name, calls)
        for twin in (False, True)
    )
    assert one == other
    return one


@pytest.mark.parametrize("kind", SHAPED)
@pytest.mark.parametrize("name", TWINNED)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_step_for_step_the_same_by_length_and_by_size(name: str, kind: str, data: st.DataObject) -> None:
    both_played(kind, data.draw(happenings(SHAPED[kind][1])), name)


@pytest.mark.parametrize("kind", SHAPED)
def test_requests_of_every_length_arrive_and_leave_together(kind: str) -> None:
    """Else there would be nothing to compare."""
    _, calls = SHAPED[kind]
    script = [("call", at % len(calls), 1 + at % 2) for at in range(60)]
    steps = both_played(kind, script, "astrarium")
    arrived = [event.request for step in steps for event in step.events if isinstance(event, RequestArrived)]
    assert len({request.length for request in arrived}) == len(calls)
    assert {request.bucket for request in arrived if request.model == 0} >= {0, 1, 2}
    assert max(len(one.requests) for step in steps for one in step.actions if isinstance(one, Dispatch)) > 2


def test_many_requests_at_once_find_room() -> None:
    script = [("call", at % 2, 3) for at in range(300)] + [("wait", 5000, 0)] + [("call", 0, 1)] * 50
    one, other = (
        played(Stage(models=2, policy="deferred"), script, twin, "deferred") for twin in (False, True)
    )
    assert one == other
    assert sum(len(step.events) for step in one) > 900


def test_waiting_requests_keep_their_slots_while_thousands_pass() -> None:
    """Slots are used again, but never one that is taken."""
    setup = Stage(gpus=1).plan.setup
    native = LiveTwin(Eager(setup, Eager.Parameters()), setup)._native
    native.decide(0, [(-2, 0, 0, 100 * MILLISECOND, 0, 0, 0)], [])  # it runs, and does not end
    patient = 10_000 * MILLISECOND
    now = 1
    dropped = set()
    native.decide(now, [(-1, 0, now, patient, 0, 0, 0)], [])
    for number in range(20_000):
        now += 1000
        decisions = native.decide(now, [(number, 0, now, now + 1, 0, 0, 0)], [])
        dropped |= {ids for kind, ids, _, _ in decisions if kind == 1}
    assert dropped == set(range(20_000))
    decisions = native.decide(now + 1, [], [(0, 0, 0, 0, 0)])  # its GPU is free
    assert [one[:3] for one in decisions if one[0] == 0] == [(0, 0, (-1,))]


def test_policies_without_a_twin_work_themselves() -> None:
    setup = Stage().plan.setup
    preempting = Shepherd(setup, Shepherd.Parameters())
    assert faster(preempting, setup) is preempting

    class Mine(Deferred):
        """Decides otherwise, so its parent's twin is not its own."""

    mine = Mine(setup, Deferred.Parameters())
    assert faster(mine, setup) is mine
