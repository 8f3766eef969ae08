"""A live cluster drains GPUs that fail and uses them again when they are well and somebody has asked."""

from __future__ import annotations

from astrarium.cluster.contract import App, Job, single
from astrarium.cluster.live.backend import MachineStatus, RunKey, Sickness
from astrarium.cluster.live.cluster import Options
from astrarium.cluster.state import Failure, Outcome
from astrarium.core.quantities import SECOND
from tests.support.cluster.play import Play, policy


def test_who_is_on_a_gpu_that_is_lost_goes_on_elsewhere() -> None:
    play = Play(policy("fifo"), [single(0, "a", 20 * SECOND, 2), single(1, "b", 20 * SECOND)])
    play.go(5)
    play.backend.sicken("left", gpu1=Sickness("Xid 79", lost=True))
    play.go(0.5)
    state = play.live.state
    assert state.failed == {1: Failure("Xid 79", 5_500_000_000)}
    assert state.apps[0].jobs[0].done == 0  # nothing was kept
    play.go(0.5)
    assert play.runs == [(0, 0, 1, "stopped")]
    assert [key for key in play.backend.runs if key.app == 1] == [RunKey(1, 0, 1)]  # on the other machine
    play.go(60)
    assert play.outcomes() == [Outcome.FINISHED] * 2
    assert play.backend.orders[-1].parts[0].gpus != (1,)


def test_who_is_on_a_gpu_that_still_works_writes_a_checkpoint() -> None:
    play = Play(policy("fifo"), [single(0, "a", 20 * SECOND, 4)], leaving=1.0)
    play.go(5)
    play.backend.sicken("right", gpu0=Sickness("hot"))
    play.go(3)
    row = play.live.state.apps[0].jobs[0]
    assert not row.gpus
    assert row.done >= 4 * 5 * SECOND
    assert play.runs == [(0, 0, 1, "stopped")]
    play.die_and_come_back()
    play.go(5)
    assert play.live.state.failed.keys() == {2}  # kept over the arbiter's death
    play.backend.sicken("right")
    play.go(5)
    assert play.live.state.failed.keys() == {2}  # well again, and nobody has asked
    play.live.retry(2)
    play.go(30)
    assert play.outcomes() == [Outcome.FINISHED]
    assert play.backend.orders[-1].parts[1].gpus == (0, 1)


def test_a_gpu_is_used_again_when_it_is_well_and_not_before() -> None:
    play = Play(policy("fifo"), [])
    play.backend.sicken("left", gpu0=Sickness("hot"))
    play.go(1)
    play.live.retry(0)
    play.go(2)
    assert play.backend.retried == [("left", 0)]
    assert (play.live.state.floor.size, play.live.memory.retrying) == (3, {0})
    play.die_and_come_back()
    play.go(1)
    assert play.backend.retried == [("left", 0)] * 2  # the order may have been lost
    play.backend.sicken("left")
    play.go(1)
    assert (play.live.state.floor.size, play.live.memory.retrying) == (4, set())


def test_a_job_is_not_to_blame_for_its_gpu() -> None:
    play = Play(policy("fifo"), [single(0, "a", 20 * SECOND)], options=Options(retries=0))
    play.go(2)
    [run] = play.backend.runs.values()
    run.ended = "failed"
    run.error = "CUDA error"
    play.backend.sicken("left", gpu0=Sickness("Xid 79", lost=True))
    play.go(60)
    assert play.outcomes() == [Outcome.FINISHED]


def test_a_machine_that_joins_with_a_sick_gpu_runs_nothing_there() -> None:
    play = Play(policy("fifo"), [App(0, "a", (tuple(Job(n, 9 * SECOND) for n in range(7)),))])
    sick = {0: Sickness("hot")}
    play.backend.machines["three"] = MachineStatus(2)
    play.backend.machines["two"] = MachineStatus(2, sick=sick)
    play.go(3)
    assert play.live.state.failed.keys() == {6}
    used = [part for order in play.backend.orders for part in order.parts if part.machine == "two"]
    assert [part.gpus for part in used] == [(1,)]
