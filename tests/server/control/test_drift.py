"""Plans follow what batches and messages really take, and forget what nobody confirms."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.server.control.calls.ticket import KeptGpu
from astrarium.server.control.health.bounds import alone, bounded
from astrarium.server.control.health.calibration import Calibration
from astrarium.server.control.health.drift_watch import EVERY, FEWEST, DriftWatch
from astrarium.server.control.replanning import Replanner
from astrarium.serving.contract import GpuSpec, Lengths, ModelSpec, Network, Setup, latency_table
from astrarium.serving.ledger import Outcome
from astrarium.serving.live.messages import ModelComplete, ModelLoaded
from astrarium.serving.policies import serving_policies
from tests.support.live_fakes import NATIVE, PATHS, Stage, on_path


@pytest.fixture(autouse=True, params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return on_path(request, monkeypatch)


def test_profiles_follow_batches_that_have_become_slower() -> None:
    stage = Stage(gpus=1, slo_ms=100)
    watch = DriftWatch(stage.plan.setup, stage.loop.now)
    stage.coordinator.accounts.batch_listeners.append(watch.saw)
    stage.workers.slower = 1.5
    for _ in range(FEWEST):
        stage.call()
        stage.wait(20)
    setup = stage.coordinator.setup
    revised = watch.revised(setup, stage.loop.now + EVERY)
    assert revised is not None
    assert revised.models[0].latency[1] == pytest.approx(1.5 * setup.models[0].latency[1], rel=0.01)
    stage.wait(EVERY / MILLISECOND)
    stage.call()
    stage.wait(20)
    assert watch.revised(revised, stage.loop.now + EVERY) is None


def test_batches_that_ran_before_all_graphs_were_there_are_not_held_against_the_profile() -> None:
    stage = Stage(gpus=2)
    entry = stage.repository.entries[0]
    now = stage.loop.now
    for gpu in range(2):
        stage.fleet.heard(gpu, ModelLoaded(0, (), (), partial=True))
    assert not entry.whole(now)
    stage.fleet.heard(0, ModelComplete(0, now))
    assert not entry.whole(now), "the other GPU captures still"
    stage.fleet.heard(1, ModelComplete(0, now + 5))
    assert (entry.whole(now + 4), entry.whole(now + 5)) == (False, True)
    stage.fleet.heard(1, ModelLoaded(0, (), (), partial=True))
    assert not entry.whole(now + 5)
    stage.workers.kill(1)
    stage.wait(1)
    assert entry.whole(now + 5), "a worker that is gone runs nothing"


def test_the_drift_watch_is_shown_batches_of_whole_models_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(gpus=1)
    shown: list[Any] = []
    calibration = Calibration(lambda worker: None, stage.loop.clock)
    replanner = Replanner(stage.plan, stage.coordinator, stage.repository, calibration, stage.loop.clock)
    monkeypatch.setattr(replanner._drift, "saw", lambda model, batches: shown.extend(batches))
    stage.repository.entries[0].whole_at[0] = 7
    replanner.saw(0, [KeptGpu(6, 1, MILLISECOND), KeptGpu(7, 2, MILLISECOND)])
    assert shown == [KeptGpu(7, 2, MILLISECOND)]


def test_another_version_that_takes_padding_runs_as_its_profile_says_again() -> None:
    stage = Stage(gpus=1)
    table = stage.plan.setup.models[0].latency
    lengths = Lengths((8, 16), (table, table), "bucket")
    spec = replace(stage.plan.setup.models[0], lengths=lengths)
    plan = dataclasses.replace(
        stage.plan, setup=replace(stage.plan.setup, models=(spec, *stage.plan.setup.models[1:]))
    )
    calibration = Calibration(lambda worker: None, stage.loop.clock)
    replanner = Replanner(plan, stage.coordinator, stage.repository, calibration, stage.loop.clock)
    stage.coordinator.begin(plan.setup)
    seen = []
    for padding in ("changes", "safe", "changes", ""):
        stage.fleet.heard(0, ModelLoaded(0, (), (), padding=padding))
        replanner.follow_drift()
        known = stage.coordinator.setup.models[0].lengths
        seen.append(known.together if known else None)
    assert seen == ["length", "bucket", "length", "bucket"]


def test_a_plan_from_a_profile_alone_is_soon_held_against_reality() -> None:
    stage = Stage(gpus=1, slo_ms=100)
    watch = DriftWatch(stage.plan.setup, stage.loop.now)
    began = stage.loop.now
    looked = [at for at in range(0, 200 * SECOND, SECOND // 10) if _judges(watch, stage, began + at)]
    assert looked[:5] == [5 * SECOND, 15 * SECOND, 35 * SECOND, 65 * SECOND, 95 * SECOND]


def _judges(watch: DriftWatch, stage: Stage, now: int) -> bool:
    before = watch._judged
    watch.revised(stage.plan.setup, now)
    return watch._judged != before


def drifted(stage: Stage, slower: float) -> DriftWatch:
    """A watch that has twice seen enough batches this much slower, and the plan that follows from it."""
    watch = DriftWatch(stage.plan.setup, stage.loop.now)
    stage.coordinator.accounts.batch_listeners.append(watch.saw)
    stage.workers.slower = slower
    for _ in range(2):  # at most twofold at once
        for _ in range(FEWEST):
            stage.call()
            stage.wait(20 * slower)
        follow(stage, watch)
    return watch


def follow(stage: Stage, watch: DriftWatch) -> None:
    """What the server does now and then."""
    stage.wait(EVERY / MILLISECOND)
    revised = watch.revised(stage.coordinator.setup, stage.loop.now)
    if revised is not None:
        stage.coordinator.begin(revised)


def planned_alone(stage: Stage) -> Time:
    return alone(stage.coordinator.setup.models[0], stage.coordinator.setup.network)


@pytest.mark.parametrize("policy", serving_policies.names())
def test_however_slow_a_model_was_a_lone_request_is_tried_under_every_policy(path: str, policy: str) -> None:
    """The plan has room for the delays and for reading the request, which takes 2 ms here."""
    if path == "native" and policy not in NATIVE:
        pytest.skip("it does not decide natively")
    stage = Stage(gpus=1, policy=policy)
    stage.coordinator.begin(replace(stage.coordinator.setup, network=Network(MILLISECOND, 0, MILLISECOND)))
    watch = drifted(stage, slower=10.0)
    assert 20 * MILLISECOND < planned_alone(stage) <= 22.5 * MILLISECOND
    stage.workers.slower = 1.0
    if policy == "clockwork":  # which keeps 5 ms of every objective for itself: the plan must be forgotten
        follow(stage, watch)
        follow(stage, watch)
    assert lone_outcome(stage, read_in=2 * MILLISECOND) is Outcome.IN_TIME


def test_a_model_slower_than_any_plan_may_say_is_not_planned_anew_again_and_again() -> None:
    stage = Stage(gpus=1)
    watch = drifted(stage, slower=10.0)
    for _ in range(3):
        stage.call()
        follow(stage, watch)
    assert watch.revisions == 2


def lone_outcome(stage: Stage, read_in: Time) -> Outcome:
    stage.wait(100)
    ticket = stage.call(received=stage.loop.now - read_in)
    stage.wait(100)
    return ticket.outcome


def test_a_model_that_is_fast_again_is_planned_so_after_a_few_batches() -> None:
    stage = Stage(gpus=1)
    watch = drifted(stage, slower=2.5)
    assert planned_alone(stage) == pytest.approx(15 * MILLISECOND)
    stage.workers.slower = 1.0
    for _ in range(4):
        follow(stage, watch)
        stage.call()
    assert planned_alone(stage) == 6 * MILLISECOND


def test_a_slow_plan_that_nobody_confirms_is_forgotten() -> None:
    """Clients that allow less than the plan are refused, and nobody runs a batch that would show better."""
    stage = Stage(gpus=1)
    watch = drifted(stage, slower=2.0)
    assert planned_alone(stage) == 12 * MILLISECOND
    for _ in range(3):
        follow(stage, watch)
    assert planned_alone(stage) == 6 * MILLISECOND


def test_delays_measured_in_a_bad_moment_are_bounded_and_follow_the_pings() -> None:
    stage = Stage(gpus=1)
    pings = [Network(15 * MILLISECOND, 0, 30 * MILLISECOND), Network(MILLISECOND // 5, 0, MILLISECOND // 2)]
    watch = DriftWatch(stage.plan.setup, stage.loop.now, lambda: pings[0])
    stage.coordinator.begin(replace(stage.plan.setup, network=pings[0]))
    assert planned_alone(stage) <= 22.5 * MILLISECOND
    assert stage.coordinator.setup.network.control == 15 * MILLISECOND  # the response delay yields first
    del pings[0]
    follow(stage, watch)
    assert stage.coordinator.setup.network == pings[0]
    pings[0] = Network(5 * MILLISECOND, 0, 5 * MILLISECOND)
    follow(stage, watch)
    assert watch.revisions == 1  # what comes and goes is for the margins


def test_a_profile_that_leaves_little_of_its_objective_leaves_others_their_delays() -> None:
    """Half of the rest is for the delays, half for reading the request."""
    tight = ModelSpec(0, "tight", 25 * MILLISECOND, latency_table([24 * MILLISECOND]))
    stated = Setup((tight,), (GpuSpec(0),))
    delays = bounded(replace(stated, network=Network(MILLISECOND, 0, MILLISECOND)), stated)
    assert delays.models == stated.models
    assert delays.network == Network(MILLISECOND // 2, 0, 0)
    assert bounded(delays, stated) == delays
