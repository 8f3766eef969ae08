"""Who runs next where the end of an iteration is heard before the next is wanted: as if both came at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from types import SimpleNamespace

import pytest

from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.core.trace import Step
from astrarium.device.contract import (
    Action,
    Admit,
    IterationFinished,
    IterationWanted,
    Job,
    JobArrived,
    JobWithdrawn,
    RunIteration,
)
from astrarium.device.contract import Event as DeviceEvent
from astrarium.device.ledger import Outcome
from astrarium.device.live.backend import Needs
from astrarium.device.live.shared_gpu import SharedGpu
from astrarium.device.policies import iteration_policies
from astrarium.device.policies.turns import GRACE, ReturningJobs
from astrarium.device.state import DeviceState
from astrarium.device.world import DeviceWorld
from astrarium.run.simulate import simulate
from astrarium.testing.plain_backend import PlainLaneBackend

PATIENCE = 20.0


def job(id_: int, iterations: int = 10, ms: int = 10, priority: int = 0) -> Job:
    return Job(id_, f"job{id_}", 5, 40, ms * MILLISECOND, iterations, priority)


class Script:
    """A policy, told events one step at a time."""

    def __init__(self, policy: str) -> None:
        self.state = DeviceState(100)
        self._engine = Engine(self.state, iteration_policies.get(policy)(), validate=True)

    def step(self, now: Time, *events: DeviceEvent) -> list[Action]:
        return self._engine.step(now, events)

    def finished(self, now: Time, id_: int, started: Time) -> list[Action]:
        [run] = [running.run for running in self.state.running.values() if running.job == id_]
        return self.step(now, IterationFinished(id_, run, started))


def ran(policy: str, jobs: list[Job], pause: Time) -> list[int]:
    """Whose iterations, in their order, where each wants the next one so long after the end of the last."""
    order: list[int] = []

    def record(step: Step) -> None:
        order.extend(action.job for action in step.actions if isinstance(action, RunIteration))

    engine = Engine(DeviceState(100), iteration_policies.get(policy)(), validate=True, record=record)
    simulate(engine, [(job.id * MILLISECOND, JobArrived(job)) for job in jobs], DeviceWorld(pause=pause))
    return order


@pytest.mark.parametrize("policy", ["fair", "fifo", "priority", "srtf"])
def test_a_moment_between_iterations_changes_nobodys_order(policy: str) -> None:
    jobs = [job(0, 12, ms=20), job(1, 6, ms=30, priority=2), job(2, 30, ms=5, priority=1)]
    assert ran(policy, jobs, GRACE // 2) == ran(policy, jobs, 0)


def two_of(policy: str, **first: int) -> Script:
    """Both want; the first, which is ahead of the other, has just ended an iteration."""
    script = Script(policy)
    script.step(0, JobArrived(job(0, **first)), IterationWanted(0))
    script.step(1, JobArrived(job(1, 50)), IterationWanted(1))
    return script


def test_the_lane_waits_for_a_better_job_and_runs_it() -> None:
    script = two_of("srtf")
    assert script.finished(10, 0, 0) == [SetTimer(10 + GRACE, "let in")]
    assert script.step(10 + GRACE - 1, IterationWanted(0)) == [RunIteration(0)]


def test_it_does_not_wait_for_ever_nor_twice_for_one_that_is_slow() -> None:
    script = two_of("srtf")
    script.finished(10, 0, 0)
    late = 10 + GRACE
    assert script.step(late, TimerFired("let in")) == [Admit(1, 0), RunIteration(1)]
    assert script.step(late + 5, IterationWanted(0)) == []
    assert script.finished(late + 10, 1, late) == [RunIteration(0)]
    script.step(late + 11, IterationWanted(1))
    assert script.finished(late + 20, 0, late + 10) == [RunIteration(1)]  # 0 took longer the last time


def test_one_that_was_slow_once_is_waited_for_again_when_it_is_quick() -> None:
    script = Script("priority")
    for id_ in (0, 1):
        script.step(0, JobArrived(job(id_, 90, priority=1 - id_)), IterationWanted(id_))
    script.finished(10, 0, 0)
    now = 10 + GRACE
    script.step(now, TimerFired("let in"))
    script.step(now, IterationWanted(0))
    script.finished(now + 10, 1, now)
    script.finished(now + 20, 0, now + 10)  # nobody is waited for, and nobody else wants
    assert script.step(now + 21, IterationWanted(0)) == [RunIteration(0)]
    script.step(now + 22, IterationWanted(1))
    assert script.finished(now + 30, 0, now + 21) == [SetTimer(now + 30 + GRACE, "lane 0")]


def test_one_that_is_late_only_while_others_run_is_waited_for_again() -> None:
    """Threads share an interpreter: who comes late because another was let in would be late for ever."""
    script = two_of("srtf")
    now = 10
    waits = []
    script.finished(now, 0, 0)
    script.step(now + GRACE, TimerFired("let in"))  # it was late once
    for _ in range(4):
        now += 3 * GRACE
        script.step(now, IterationWanted(0))
        script.finished(now, 1, now - GRACE)
        script.step(now + 1, IterationWanted(1))
        waits.append(script.finished(now + 10, 0, now) == [SetTimer(now + 10 + GRACE, "lane 0")])
        if waits[-1]:
            break
    assert waits == [False, True]
    assert script.step(now + 11, IterationWanted(0)) == [RunIteration(0)]


def test_one_that_is_always_late_is_waited_for_ever_more_rarely() -> None:
    returns = ReturningJobs()
    waited = []
    state = SimpleNamespace(admitted={0: None}, ready=set())
    for turn in range(200):
        at = turn * SECOND
        returns.hear(at, [IterationFinished(0, turn, at)])
        if returns.awaited(at, state):  # type: ignore[arg-type]
            waited.append(turn)
        returns.hear(at + 2 * GRACE, [IterationWanted(0)])
    assert waited == [0, 2, 5, 10, 19, 36, 69, 134, 199]


def test_nobody_is_waited_for_who_has_gone() -> None:
    script = two_of("srtf")
    script.finished(10, 0, 0)
    assert script.step(11, JobWithdrawn(0)) == [Admit(1), RunIteration(1)]


def test_a_worse_job_is_not_waited_for() -> None:
    script = Script("srtf")
    script.step(0, JobArrived(job(0, 50)), IterationWanted(0))
    script.step(1, JobArrived(job(1, 5)), IterationWanted(1))
    assert script.finished(10, 0, 0) == [RunIteration(1)]


def alone(script: Script, id_: int, turns: int, now: Time) -> Time:
    script.step(now, IterationWanted(id_))
    for _ in range(turns):
        script.finished(now + 10, id_, now)
        now += 10
        script.step(now, IterationWanted(id_))
    return now


@pytest.mark.parametrize("newcomer", [False, True])
def test_nobody_is_made_up_for_what_others_had_while_it_was_idle(newcomer: bool) -> None:
    """Job 1 is there from the start, and idle; then it wants turns, or another one comes beside it."""
    script = Script("fair")
    big = 1 << 30
    for id_ in (0, 1):
        script.step(0, JobArrived(job(id_, big)))
    now = alone(script, 0, turns=100, now=0)
    other = 2 if newcomer else 1
    script.step(now, *([JobArrived(job(2, big))] if newcomer else []), IterationWanted(other))
    order = []
    for _ in range(10):
        [running] = script.state.running.values()
        order.append(running.job)
        script.step(now + 10, IterationFinished(running.job, running.run, now), IterationWanted(running.job))
        now += 10
    assert order == [0, other] * 5


def test_one_that_comes_straight_back_keeps_what_it_is_owed() -> None:
    script = Script("fair")
    for id_ in (0, 1):
        script.step(0, JobArrived(job(id_)), IterationWanted(id_))
    script.finished(100, 0, 0)  # the other one has had nothing yet
    script.step(100, IterationWanted(0))
    script.finished(110, 1, 100)
    assert script.step(111, IterationWanted(1)) == [RunIteration(1)]


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> Time:
        return self.now


def live(policy: str, jobs: list[tuple[int, int, int]]) -> list[int]:
    """Jobs of so many iterations, of so many milliseconds, so important: whose iterations ran, in order. Time
    moves in iterations, when all others who have some left want the next."""
    clock = Clock()
    order = list[int]()
    left = [iterations for iterations, *_ in jobs]
    gpu = SharedGpu(iteration_policies.get(policy)(), PlainLaneBackend(), clock)
    gpu._driver._engine.validate = True
    there = Barrier(len(jobs))
    begun = Event()
    events = [Event() for _ in jobs]

    def work(number: int) -> None:
        iterations, ms, priority = jobs[number]
        if number:
            assert events[number - 1].wait(PATIENCE)
        with gpu.job(f"job{number}", Needs(5, 40, ms * MILLISECOND), iterations, priority) as live_job:
            events[number].set()
            there.wait(PATIENCE)
            if number:
                assert begun.wait(PATIENCE)
            for _ in range(iterations):
                with live_job.iteration():
                    begun.set()
                    order.append(number)
                    others = sum(n > 0 for other, n in enumerate(left) if other != number)
                    until(lambda: len(gpu._driver._grants.waiting) == others)  # noqa: B023
                    left[number] -= 1
                    clock.now += ms * MILLISECOND

    with ThreadPoolExecutor(len(jobs)) as threads:
        for done in [threads.submit(work, number) for number in range(len(jobs))]:
            done.result(PATIENCE)
    assert [row.outcome for row in gpu.rows()] == [Outcome.FINISHED] * len(jobs)
    return order


def until(happens: Callable[[], bool]) -> None:
    pause = Event()
    while not happens():
        pause.wait(0.001)


def test_live_the_shortest_runs_to_its_end() -> None:
    assert live("srtf", [(8, 10, 0), (3, 10, 0), (5, 10, 0)]) == [0, *[1] * 3, *[2] * 5, *[0] * 7]


def test_live_the_most_important_runs_to_its_end() -> None:
    assert live("priority", [(4, 10, 0), (3, 10, 1), (5, 10, 2)]) == [0, *[2] * 5, *[1] * 3, *[0] * 3]


def test_live_fair_is_by_time_and_not_by_turns() -> None:
    order = live("fair", [(40, 2, 0), (4, 20, 0)])
    assert order == [0, 1, *[0] * 10, 1, *[0] * 10, 1, *[0] * 10, 1, *[0] * 9]


def test_live_a_timer_lets_the_next_one_run() -> None:
    """The first has ended an iteration, is waited for, and does not come back."""
    clock = Clock()
    gpu = SharedGpu(iteration_policies.get("srtf")(), PlainLaneBackend(), clock)
    waits = Event()
    ran_at = list[Time]()

    def other() -> None:
        with gpu.job("other", Needs(5, 40, 1), iterations=50) as job:
            waits.set()
            with job.iteration():
                ran_at.append(clock.now)

    with ThreadPoolExecutor(1) as threads, gpu.job("first", Needs(5, 40, 1), iterations=9) as first:
        with first.iteration():
            done = threads.submit(other)
            assert waits.wait(PATIENCE)
            until(lambda: bool(gpu._driver._grants.waiting))
        assert gpu._driver._grants.waiting
        assert not ran_at
        clock.now = GRACE
        done.result(PATIENCE)
    assert ran_at == [GRACE]
