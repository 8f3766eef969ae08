"""The live engine with machines that are not there, in virtual time."""

from __future__ import annotations

import copy

import pytest

from astrarium.cluster.contract import App, AppArrived, AppWithdrawn, Job, JobProgressed, single
from astrarium.cluster.live.backend import JobCommand, MachineStatus, RunKey
from astrarium.cluster.live.cluster import Options
from astrarium.cluster.live.slowdowns import FixedSlowdowns
from astrarium.cluster.policies import Arbiter
from astrarium.cluster.state import ClusterState, Outcome
from astrarium.core.engine import Engine
from astrarium.core.quantities import SECOND, Duration
from astrarium.run.replay import replay
from tests.support.cluster.play import TASK, Play, leased, policy


def test_what_the_policy_says_is_what_runs() -> None:
    play = Play(policy("fifo"), [single(0, "a", 10 * SECOND, 4), single(1, "b", 5 * SECOND)])
    play.live.step(0)
    [order] = play.backend.orders
    assert [(part.machine, part.gpus) for part in order.parts] == [("left", (0, 1)), ("right", (0, 1))]
    play.go(20)
    assert play.outcomes() == [Outcome.FINISHED] * 2
    assert (play.ended(0), play.ended(1)) == (10.0, 15.0)


def test_gpus_are_handed_over_when_their_last_user_has_left() -> None:
    play = Play(leased(), [single(0, "a", 30 * SECOND, 4), single(1, "b", 30 * SECOND, 4)], leaving=2.0)
    play.go(11)
    assert play.live.state.apps[1].jobs[0].gpus  # in the books it is the other's turn
    assert play.backend.started == [RunKey(0, 0, 1)]
    play.go(3)
    assert play.backend.started == [RunKey(0, 0, 1), RunKey(1, 0, 1)]
    play.go(120)
    assert play.outcomes() == [Outcome.FINISHED] * 2
    assert {how for *_, how in play.runs} == {"stopped", "finished"}


def test_a_lease_runs_when_its_gpus_can_be_used() -> None:
    """Whoever was there takes longer to leave than a lease is long."""
    play = Play(leased(5), [single(0, "a", 30 * SECOND, 4), single(1, "b", 30 * SECOND, 4)], leaving=8.0)
    play.go(60)
    assert [key.app for key in play.backend.started] == [0, 1] * 3
    assert "unstarted" not in {how for *_, how in play.runs}


def test_a_lease_waits_for_gpus_only_so_long() -> None:
    options = Options(handover=3 * SECOND)
    play = Play(leased(5), [single(0, "a", 50 * SECOND, 4), single(1, "b", 12 * SECOND, 4)], options=options)
    play.backend.leaving = 1000 * SECOND
    play.go(14)
    assert [key.app for key in play.backend.started] == [0]
    assert "unstarted" in {how for *_, how in play.runs}


def test_every_run_ends_in_one_state() -> None:
    play = Play(leased(), [single(n, f"app {n}", 25 * SECOND, 1 + n % 3) for n in range(6)], leaving=1.0)
    play.go(400, until=lambda: not play.live.state.apps)
    assert play.outcomes() == [Outcome.FINISHED] * 6
    keys = [tuple(key) for *key, _ in play.runs]
    assert len(keys) == len(set(keys))
    assert {RunKey(*key) for key in keys} >= set(play.backend.started)
    assert not play.live.memory.open
    assert not play.backend.runs


def test_a_fresh_policy_decides_the_same_from_the_recorded_steps() -> None:
    play = Play(leased(), [single(n, f"app {n}", 25 * SECOND, 1 + n % 3) for n in range(6)], leaving=1.0)
    play.go(400, until=lambda: not play.live.state.apps)
    engine = Engine(ClusterState(FixedSlowdowns()), Arbiter(leased()), validate=True)
    assert replay(engine, play.notes.steps) is None
    assert len(play.notes.steps) > 20


def test_a_machine_that_dies_takes_what_was_not_kept() -> None:
    play = Play(policy("fifo"), [single(0, "a", 20 * SECOND, 4)])
    play.go(5)
    play.backend.lose("right")
    play.go(1)
    row = play.live.state.apps[0].jobs[0]
    assert (row.done, row.gpus) == (0, ())  # a gang of four on two GPUs: it waits
    assert play.runs == [(0, 0, 1, "lost")]
    play.backend.machines["third"] = MachineStatus(4)
    play.go(30)
    assert play.outcomes() == [Outcome.FINISHED]
    assert play.backend.orders[-1].parts[0].machine == "third"


def test_a_machine_that_comes_back_has_a_new_number() -> None:
    play = Play(policy("fifo"), [])
    seen = play.backend.machines.pop("right")
    play.go(1)
    play.backend.machines["right"] = seen
    play.go(1)
    assert sorted(play.live.state.floor.machines) == [0, 2]
    assert play.live.memory.machines == {0: "left", 2: "right"}


def test_a_job_that_fails_is_begun_again_and_not_for_ever() -> None:
    play = Play(policy("fifo"), [single(0, "a", 20 * SECOND)], options=Options(retries=2), breaks=True)
    play.go(10)
    row = play.live.state.ledger.rows[0]
    assert (row.outcome, row.reason) == (Outcome.FAILED, "job 0 failed: exit code 1")
    assert len(play.backend.started) == 3


def test_a_command_that_is_not_found_fails_at_once() -> None:
    play = Play(policy("fifo"), [single(0, "a", 20 * SECOND)], options=Options(retries=5))
    play.go(1)
    [run] = play.backend.runs.values()
    run.ended = "not found"
    run.error = "exit code 127, train: not found"
    play.go(1)
    row = play.live.state.ledger.rows[0]
    assert (row.outcome, row.reason) == (Outcome.FAILED, "job 0 failed: exit code 127, train: not found")
    assert len(play.backend.started) == 1


def test_failures_are_forgiven_where_the_job_gets_further() -> None:
    play = Play(policy("fifo"), [single(0, "a", 20 * SECOND)], options=Options(retries=1))
    for _ in range(4):
        play.go(3)
        run = next(run for run in play.backend.runs.values() if not run.ended)
        run.kept = play.backend._part(run)
        run.ended = "failed"
        play.backend._keep(run)
    play.go(20)
    assert play.outcomes() == [Outcome.FINISHED]


def leave(play: Play) -> None:
    """With exit code 75, and nobody has asked."""
    play.go(3)
    run = next(run for run in play.backend.runs.values() if not run.ended)
    run.ended = "stopped"


def test_a_job_that_leaves_without_being_asked_is_not_begun_again_for_ever() -> None:
    play = Play(policy("fifo"), [single(0, "a", 20 * SECOND)], options=Options(retries=1))
    for _ in range(2):
        leave(play)
    play.go(2)
    row = play.live.state.ledger.rows[0]
    assert (row.outcome, len(play.backend.started)) == (Outcome.FAILED, 2)
    assert row.reason == "job 0 failed: it left with exit code 75, and was not asked to"
    assert [job.done for job in row.jobs.values()] == [0]  # it kept nothing, and the books know


def test_who_is_asked_to_leave_has_not_failed() -> None:
    """Not by a lease that ends, nor by an arbiter that drains, nor by one that is no longer there."""
    play = Play(policy("fifo"), [single(0, "a", 20 * SECOND)], options=Options(retries=0))
    play.go(3)
    play.live.drain()
    play.live.step(play.clock.now)
    leave(play)
    play.die_and_come_back()
    play.go(100)
    assert play.outcomes() == [Outcome.FINISHED]


def test_a_machine_that_has_changed_is_another_one() -> None:
    play = Play(policy("fifo"), [single(0, "a", 20 * SECOND, 2), single(1, "b", 20 * SECOND, 2)])
    play.go(3)
    play.backend.machines["right"] = MachineStatus(3)
    play.go(60)
    assert play.outcomes() == [Outcome.FINISHED] * 2
    assert play.live.state.floor.size == 5
    assert play.live.memory.machines == {0: "left", 2: "right"}


def test_an_app_that_is_withdrawn_leaves() -> None:
    play = Play(policy("fifo"), [single(0, "a", 20 * SECOND), single(1, "b", 20 * SECOND)])
    play.go(2)
    play.live.step(play.clock.now, [AppWithdrawn(0)])
    play.go(1)
    assert play.outcomes() == [Outcome.WITHDRAWN, Outcome.OPEN]
    assert [key.app for key in play.backend.runs] == [1]


def test_a_job_that_ends_while_it_is_asked_to_stop_is_not_run_again() -> None:
    apps = [single(0, "a", 11 * SECOND, 4), single(1, "b", 30 * SECOND, 4)]
    play = Play(leased(), apps, leaving=5.0)
    play.go(100)
    assert play.outcomes() == [Outcome.FINISHED] * 2
    assert [key for key in play.backend.started if key.app == 0] == [RunKey(0, 0, 1)]


def test_a_command_that_cannot_be_stopped_keeps_its_gpus() -> None:
    apps = [single(0, "a", 35 * SECOND, 4), single(1, "b", 10 * SECOND, 4)]
    tasks = {0: JobCommand(("train",), on_stop="never"), 1: TASK}
    play = Play(leased(), apps, tasks=tasks)
    play.go(60)
    assert play.backend.started == [RunKey(0, 0, 1), RunKey(1, 0, 1)]
    assert play.ended(0) == 35.0
    why = [action.why for step in play.notes.steps for action in step.actions if hasattr(action, "why")]
    assert any("cannot be stopped" in reason for reason in why)


def test_progress_is_told_now_and_then() -> None:
    play = Play(policy("fifo"), [single(0, "a", 60 * SECOND)], options=Options(progress=10 * SECOND))
    play.go(35)
    reports = [
        event for step in play.notes.steps for event in step.events if isinstance(event, JobProgressed)
    ]
    assert [round(event.done / SECOND) for event in reports] == [10, 20, 30]


def test_draining_leaves_everything_to_be_gone_on_with() -> None:
    play = Play(leased(), [single(0, "a", 30 * SECOND, 4), single(1, "b", 30 * SECOND, 4)], leaving=1.0)
    play.go(5)
    assert not play.live.drain()
    play.clock.pass_seconds(1)
    assert play.live.drain()
    play.clock.pass_seconds(100)
    play.die_and_come_back()
    play.go(200)
    assert play.outcomes() == [Outcome.FINISHED] * 2


APPS = [single(n, f"app {n}", 25 * SECOND, 1 + n % 3) for n in range(4)]


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_an_arbiter_that_dies_after_any_step_goes_on(every: int) -> None:
    play = Play(leased(), APPS, leaving=1.0)
    for _ in range(400):
        before = len(play.notes.steps)
        play.go(0.5)
        if len(play.notes.steps) > before and len(play.notes.steps) % every == 0:
            play.die_and_come_back()
        if not play.live.state.apps:
            break
    assert play.outcomes() == [Outcome.FINISHED] * 4
    assert len(play.backend.started) == len(set(play.backend.started))
    play.live.state.validate()


@pytest.mark.parametrize("at", range(1, 17, 3))
def test_an_arbiter_that_dies_before_it_could_write_has_done_nothing(at: int) -> None:
    """What it decided is lost, and so are no orders: they are given after the writing."""
    play = Play(leased(), APPS, leaving=1.0)
    play.go(100, until=lambda: len(play.notes.steps) >= at)
    play.notes.full, ordered = True, len(play.backend.started)
    with pytest.raises(OSError, match="no space"):
        play.go(60)
    assert len(play.backend.started) - ordered <= 1  # what an earlier step said, when its GPUs were clear
    play.notes.full = False
    play.die_and_come_back()
    play.go(400, until=lambda: not play.live.state.apps)
    assert play.outcomes() == [Outcome.FINISHED] * 4


def test_an_arbiter_that_dies_between_writing_and_ordering_orders_later() -> None:
    play = Play(leased(), APPS, leaving=1.0)
    play.live._backend = copy.copy(play.backend)  # orders go nowhere
    play.live._backend.start = lambda order: None  # type: ignore[method-assign]
    play.go(3)
    assert len(play.backend.started) < 4
    play.die_and_come_back()
    play.go(400, until=lambda: not play.live.state.apps)
    assert play.outcomes() == [Outcome.FINISHED] * 4


def test_another_policy_takes_over() -> None:
    play = Play(leased(), APPS, leaving=1.0)
    play.go(12)
    play.die_and_come_back(policy("srtf", lease=Duration(5 * SECOND)))
    play.go(200, until=lambda: not play.live.state.apps)
    assert play.outcomes() == [Outcome.FINISHED] * 4
    arrived = [event for step in play.notes.steps for event in step.events if isinstance(event, AppArrived)]
    assert len(arrived) == 4


def test_phases_follow_one_another() -> None:
    phases = tuple(tuple(Job(number, 10 * SECOND) for number in numbers) for numbers in ((0, 1), (2,)))
    play = Play(policy("fifo"), [App(0, "two phases", phases)])
    play.go(40)
    assert play.outcomes() == [Outcome.FINISHED]
    assert [(order.key.job, order.phase) for order in play.backend.orders] == [(0, 0), (1, 0), (2, 1)]
