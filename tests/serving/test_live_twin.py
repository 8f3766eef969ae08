"""The native twin at work live decides as the policy itself does, whatever happens to the GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.choice import parameters_of
from astrarium.core.quantities import MILLISECOND
from astrarium.serving.contract import Setup
from astrarium.serving.policies import serving_policies
from astrarium.serving.policies.shepherd import Shepherd
from astrarium.serving.policies.window import Deferred, Eager
from astrarium.serving.twin.live import LiveTwin, faster
from tests.support.live_fakes import Stage

TWINNED = ("astrarium", "deferred", "eager", "orloj", "timeout")

happenings = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, 1), st.integers(1, 3)),
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


def played(stage: Stage, script: list[tuple[str, int, int]], twin: bool, name: str) -> list[Any]:
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
                stage.call(number, rows)
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
@given(script=happenings)
@settings(max_examples=60, deadline=None)
def test_step_for_step_the_same(name: str, script: list[tuple[str, int, int]]) -> None:
    one, other = (played(Stage(models=2, policy=name), script, twin, name) for twin in (False, True))
    assert one == other


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
