"""Who is to blame for a lost worker, in virtual time: calls, their mates, models, and nobody else."""

from __future__ import annotations

import logging

import pytest

from astrarium._front import Verdict
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.server.control.accounts.causes import QUARANTINED, WORKER_LOST
from astrarium.server.control.calls.ticket import Ticket
from astrarium.server.control.workers.worker_entry import LOADS
from astrarium.serving.ledger import Outcome
from astrarium.serving.live.messages import LoadModel, RunBatch, UnloadModel, WorkerBroken
from astrarium.serving.live.process import Death
from tests.support.live_fakes import PATHS, Stage, on_path

EXITED = Death("exited with status 1")
POISON = b"poison!!"
QUARANTINE = 600 * SECOND  # kLasts in native/scheduler/quarantine.h


@pytest.fixture(autouse=True, params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return on_path(request, monkeypatch)


def poisoned(gpus: int = 1, models: int = 1, slo_ms: int = 1000, policy: str = "eager") -> Stage:
    """Return a stage on which a call of model 0 that begins with POISON ends its worker."""
    stage = Stage(gpus, models, slo_ms=slo_ms, policy=policy)
    stage.workers.deadly = {0: EXITED}
    stage.workers.poison = POISON
    return stage


def sizes(stage: Stage) -> list[int]:
    return [batch.size for batch in stage.workers.batches()]


def outcomes(calls: list[Ticket]) -> list[Outcome]:
    return [ticket.outcome for ticket in calls]


def test_a_call_that_breaks_a_worker_alone_is_not_tried_again_and_its_input_is_refused() -> None:
    stage = poisoned(gpus=2)
    ticket = stage.call(data=POISON)
    stage.wait(20)
    assert (ticket.outcome, ticket.cause, ticket.retried) == (Outcome.FAILED, WORKER_LOST, False)
    assert "the worker of GPU 0 exited with status 1 while it ran this call alone" in ticket.reason
    assert stage.fleet.restarts == 1
    again = stage.call(data=POISON)
    other = stage.call()
    stage.wait(30)
    assert (again.outcome, again.cause) == (Outcome.FAILED, QUARANTINED)
    assert "exited with status 1" in again.reason
    assert other.outcome is Outcome.IN_TIME
    assert stage.fleet.restarts == 1
    stage.check_the_accounts()


def test_the_quarantine_is_seen_ends_by_itself_and_can_be_lifted() -> None:
    for lift in (True, False):
        stage = poisoned()
        stage.call(data=POISON)
        stage.wait(200)
        (held,) = stage.coordinator.quarantined()
        assert (held.model, held.until - held.since) == (0, QUARANTINE)
        assert "this call alone" in held.reason
        stage.workers.deadly.clear()
        if lift:
            assert stage.coordinator.release(0) == 1
        else:
            stage.wait(QUARANTINE / MILLISECOND)
        assert stage.coordinator.quarantined() == []
        ticket = stage.call(data=POISON)
        stage.wait(30)
        assert ticket.outcome is Outcome.IN_TIME
        stage.check_the_accounts()


def test_mates_of_a_call_that_breaks_its_worker_are_answered_alone() -> None:
    stage = poisoned()
    first = stage.call()  # while it runs the others gather
    stage.wait(1)
    calls = [stage.call(), stage.call(data=POISON), stage.call()]
    stage.wait(500)
    assert first.outcome is Outcome.IN_TIME
    assert outcomes(calls) == [Outcome.IN_TIME, Outcome.FAILED, Outcome.IN_TIME]
    assert sizes(stage) == [1, 3, 1, 1, 1]
    assert stage.fleet.restarts == 2
    assert "while it ran this call alone" in calls[1].reason
    assert [ticket.retried for ticket in calls] == [True, True, True]
    stage.check_the_accounts()


def test_mates_that_cannot_be_in_time_alone_fail_with_the_reason() -> None:
    stage = poisoned(slo_ms=40)
    stage.call()
    stage.wait(1)
    calls = [stage.call(), stage.call(data=POISON)]
    stage.wait(100)
    for ticket in calls:
        assert (ticket.outcome, ticket.cause) == (Outcome.FAILED, WORKER_LOST)
        assert "a batch of 2 calls, this one among them, and it is too late to try again" in ticket.reason
    assert stage.fleet.restarts == 1
    stage.check_the_accounts()


def test_batches_that_waited_behind_a_broken_one_go_on_elsewhere() -> None:
    stage = poisoned(gpus=2, models=2, policy="astrarium", slo_ms=100)
    calls = [stage.call(model=0, data=POISON)]
    calls += [stage.call(model=1) for _ in range(6)]
    stage.wait(400)
    assert calls[0].cause == WORKER_LOST
    assert outcomes(calls[1:]) == [Outcome.IN_TIME] * 6
    stage.check_the_accounts()


def test_what_somebody_outside_ended_is_believed_of_a_call_once() -> None:
    stage = Stage(gpus=2, slo_ms=600)
    ticket = stage.call()
    for _ in range(2):
        stage.wait(2)
        stage.workers.kill(stage.workers.orders[-1][0])
    stage.wait(300)
    assert (ticket.outcome, ticket.cause) == (Outcome.FAILED, WORKER_LOST)
    assert [batch.size for batch in stage.workers.batches()] == [1, 1]
    stage.check_the_accounts()


def test_a_worker_names_the_batch_that_broke_it() -> None:
    """Batches are launched ahead: the one that the worker names need not be the first."""
    stage = Stage(gpus=1, slo_ms=1000)
    first = stage.call()
    stage.wait(1)
    (batch,) = stage.workers.batches()
    stage.fleet.heard(0, WorkerBroken(batch.tag, "lost GPU 0: device-side assert triggered"))
    stage.workers.kill(0, Death("exited with status 75"))
    stage.wait(300)
    assert first.cause == WORKER_LOST
    assert "the worker of GPU 0 lost GPU 0: device-side assert triggered while it ran this" in first.reason
    stage.check_the_accounts()


def test_calls_wait_for_a_worker_that_is_on_its_way_and_others_are_told_that_it_is_too_late() -> None:
    stage = Stage(gpus=1, slo_ms=25)
    stage.workers.crash(0)
    stage.wait(1)
    now = stage.loop.now
    admission = stage.coordinator.admission
    assert not stage.coordinator.present
    cost = admission.cost(0)
    assert admission.admit(0, cost, 25 * MILLISECOND, now, now) == Verdict.AWAY
    assert admission.admit(0, cost, 300 * MILLISECOND, now, now) == Verdict.TAKEN
    ticket = stage.call(timeout_ms=300)
    stage.wait(300)
    assert ticket.outcome is Outcome.IN_TIME


def test_rows_and_copies_of_an_input_that_broke_a_worker_are_not_tried_one_by_one() -> None:
    stage = poisoned(slo_ms=3000)
    stage.call()
    stage.wait(1)
    several = stage.call(rows=4, data=POISON)
    stage.wait(3000)
    assert (several.outcome, several.cause) == (Outcome.FAILED, WORKER_LOST)
    assert stage.fleet.restarts == 2
    stage = poisoned(slo_ms=3000)
    stage.call()
    stage.wait(1)
    copies = [stage.call(data=POISON) for _ in range(6)]
    stage.wait(3000)
    assert outcomes(copies) == [Outcome.FAILED] * 6
    assert stage.fleet.restarts == 2
    assert len(stage.coordinator.quarantined()) == 1
    stage.check_the_accounts()


@pytest.mark.parametrize("policy", ["eager", "astrarium"])
def test_copies_that_waited_with_the_policy_are_refused_and_its_gpu_goes_on(policy: str) -> None:
    """Their batch ends without a worker; the policy hears of that when those before it have ended."""
    stage = poisoned(slo_ms=3000, policy=policy)
    first = stage.call(data=POISON)
    stage.wait(1)
    calls = [stage.call(data=b"good" if number % 4 == 0 else POISON) for number in range(24)]
    stage.wait(2000)
    assert first.cause == WORKER_LOST
    later = [stage.call() for _ in range(6)]
    stage.wait(500)
    assert outcomes(later) == [Outcome.IN_TIME] * 6
    assert outcomes(calls[::4]) == [Outcome.IN_TIME] * 6
    stage.wait(3000)
    stage.check_the_accounts()


@pytest.mark.parametrize("policy", ["eager", "astrarium"])
def test_a_batch_of_nothing_but_quarantined_inputs_ends(policy: str) -> None:
    """It went on to other GPUs like the batches of a worker that is away, and the server ended."""
    stage = poisoned(slo_ms=3000, policy=policy)
    first = stage.call(data=POISON)
    stage.wait(1)
    copies = [stage.call(data=POISON) for _ in range(24)]
    stage.wait(3000)
    assert outcomes([first, *copies]) == [Outcome.FAILED] * 25
    good = stage.call()
    stage.wait(500)
    assert good.outcome == Outcome.IN_TIME
    stage.check_the_accounts()


def test_a_worker_that_was_broken_is_back_at_once_and_the_log_names_the_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = poisoned()
    stage.wait(2000)
    stage.call(data=POISON)
    with caplog.at_level(logging.WARNING):
        stage.wait(7)
    assert stage.workers.alive[0]
    (messages,) = [record.getMessage() for record in caplog.records]
    assert (
        messages == "worker 0 exited with status 1 while it ran 1 call of model m0; it starts again at once"
    )


def test_only_time_with_a_batch_counts_against_a_worker() -> None:
    stage = Stage(gpus=1)
    for _ in range(100):
        stage.wait(100)
        stage.fleet.check_for_stuck()
    stage.workers.stopped = {0}
    for _ in range(3):
        stage.fleet.check_for_stuck()
    assert stage.workers.alive[0]
    assert stage.fleet.restarts == 0


def test_a_model_that_ends_workers_while_they_load_it_is_refused_and_others_are_served() -> None:
    stage = Stage(gpus=1, models=2, slo_ms=60)
    stage.workers.deadly_loads = {0}
    stage.workers.crash(0)
    stage.wait(3000)
    loads = [order for _, order in stage.workers.orders if isinstance(order, LoadModel) and order.model == 0]
    assert len(loads) == 1 + LOADS
    entry = stage.repository.entries[0]
    assert entry.state == "UNAVAILABLE"
    assert "killed by SIGSEGV while it loaded the model, 2 times" in entry.reason
    ticket = stage.call(model=1)
    stage.wait(60)
    assert ticket.outcome is Outcome.IN_TIME


def test_a_load_that_ends_its_worker_is_blamed_and_not_the_batch_beside_it() -> None:
    stage = Stage(gpus=2, models=2, slo_ms=3000)
    stage.workers.deadly_loads = {1}
    ticket = stage.call(model=0)
    stage.wait(0)
    stage.fleet.load(1, stage.plan.models[1].files)
    stage.wait(2900)
    assert ticket.outcome is Outcome.IN_TIME
    assert stage.coordinator.quarantined() == []
    assert "while it loaded model m1" in stage.fleet.last_death


def test_a_load_that_takes_far_longer_than_before_ends_its_worker_and_is_refused_in_the_end() -> None:
    stage = Stage(gpus=1, models=2, slo_ms=60)
    stage.workers.crash(0)  # so that it is known how long loads take
    for _ in range(5):
        stage.wait(100)
        stage.fleet.check_for_stuck()
    stage.workers.hanging_loads = {1}
    stage.workers.crash(0)
    for _ in range(300):
        stage.wait(100)
        stage.fleet.check_for_stuck()
    assert "was stuck: it loaded a model" in stage.repository.entries[1].reason
    ticket = stage.call(model=0)
    stage.wait(60)
    assert ticket.outcome is Outcome.IN_TIME


def test_workers_that_die_of_sigkill_again_and_again_while_one_model_runs_are_held_against_it() -> None:
    stage = Stage(gpus=2, models=2, slo_ms=25)
    for _ in range(4):
        stage.call(model=0)
        stage.wait(2)
        stage.workers.kill(stage.workers.orders[-1][0])
        stage.wait(2000)
    assert stage.repository.entries[0].apart


def test_a_model_of_its_own_process_that_is_away_is_run_where_it_is_not() -> None:
    stage = isolated(gpus=2, slo_ms=60)
    stage.workers.crash(2)
    stage.wait(0)
    calls = [stage.call(model=0) for _ in range(4)]
    stage.wait(100)
    assert outcomes(calls) == [Outcome.IN_TIME] * 4
    stage.wait(2000)
    stage.check_the_accounts()


def break_twice(stage: Stage) -> None:
    for number in range(2):
        stage.call(data=POISON[:-1] + bytes([number]))
        stage.wait(2000)


def isolated(gpus: int = 2, slo_ms: int = 1000) -> Stage:
    stage = poisoned(gpus, models=2, slo_ms=slo_ms)
    stage.workers.poison = POISON[:-1]
    stage.wait(2000)
    break_twice(stage)
    return stage


def test_a_model_that_breaks_workers_again_is_set_apart() -> None:
    stage = isolated()
    entry = stage.repository.entries[0]
    assert entry.state == "READY"
    assert "it broke 2 workers" in entry.apart
    unloaded = {worker for worker, order in stage.workers.orders if order == UnloadModel(0, moves=True)}
    assert unloaded == {1}  # worker 0 was gone, and has not loaded it again
    left = stage.workers.orders.index((1, UnloadModel(0, moves=True)))
    later = [order for worker, order in stage.workers.orders[left:] if worker == 1]
    assert not [order for order in later if isinstance(order, RunBatch) and order.model == 0]
    before = len(stage.workers.orders)
    calls = [stage.call(model=number % 2) for number in range(8)]
    stage.wait(200)
    assert outcomes(calls) == [Outcome.IN_TIME] * 8
    ran = {
        (order.model, worker)
        for worker, order in stage.workers.orders[before:]
        if isinstance(order, RunBatch)
    }
    assert {worker for model, worker in ran if model == 0} <= {2, 3}
    assert {worker for model, worker in ran if model == 1} <= {0, 1}
    stage.check_the_accounts()


def test_a_model_that_is_set_apart_breaks_nobody_elses_work() -> None:
    """With one GPU and objectives that leave no time for a restart."""
    stage = isolated(gpus=1, slo_ms=60)
    restarts = stage.fleet.restarts
    others = []
    for number in range(20):
        stage.call(data=POISON[:-1] + bytes([10 + number]), timeout_ms=200)
        for _ in range(10):
            others.append(stage.call(model=1))
            stage.wait(20)
    stage.wait(12_000)
    assert stage.fleet.restarts >= restarts + 5
    assert outcomes(others) == [Outcome.IN_TIME] * len(others)
    assert stage.coordinator.present == {0}
    stage.check_the_accounts()


def test_batches_of_a_gpu_run_one_by_one_in_whichever_process() -> None:
    stage = isolated(gpus=1, slo_ms=400)
    running: set[int] = set()
    for _ in range(12):
        stage.call(model=0), stage.call(model=1)
        stage.wait(3)
        held = {worker for worker in stage.fleet.ready() if stage.scheduler.oldest(worker) is not None}
        assert len(held) <= 1
        running |= held
    assert running == {0, 1}
    stage.wait(500)
    stage.check_the_accounts()


def test_calls_of_a_model_whose_own_worker_is_away_wait_for_it() -> None:
    stage = isolated(gpus=1, slo_ms=1000)
    entry = stage.repository.entries[0]
    stage.workers.crash(1)
    stage.wait(0)
    assert (entry.state, "its worker exited with status 1" in entry.reason) == ("LOADING", True)
    # one that was let in just before
    ticket = stage.call(model=0)
    other = stage.call(model=1)
    stage.wait(300)
    assert outcomes([ticket, other]) == [Outcome.IN_TIME] * 2
    assert entry.state == "READY"
    stage.check_the_accounts()


def test_the_shared_worker_may_die_while_a_model_of_its_own_process_runs() -> None:
    stage = isolated(gpus=1, slo_ms=1000)
    apart = stage.call(model=0)
    behind = stage.call(model=1)
    stage.wait(2)
    stage.workers.kill(0)
    stage.wait(600)
    assert outcomes([apart, behind]) == [Outcome.IN_TIME] * 2
    stage.check_the_accounts()


def test_an_unloaded_model_is_with_the_others_again_when_it_is_loaded() -> None:
    stage = isolated(gpus=1)
    entry = stage.repository.entries[0]
    stage.fleet.unload(0)
    stage.wait(10)
    stage.isolation.forgive(entry)
    stage.wait(10)
    assert not entry.apart
    assert not stage.workers.alive[1]
    entry.state = "LOADING"
    stage.fleet.load(0, entry.plan.files)
    stage.wait(10)
    ticket = stage.call(model=0)
    stage.wait(100)
    assert ticket.outcome is Outcome.IN_TIME
    assert stage.workers.orders[-1][0] == 0
    stage.wait(2 * SECOND / MILLISECOND)
    stage.check_the_accounts()


def test_a_lone_model_is_not_set_apart() -> None:
    """There is nobody to keep it away from."""
    stage = poisoned(models=1)
    stage.workers.poison = POISON[:-1]
    break_twice(stage)
    entry = stage.repository.entries[0]
    assert (entry.state, entry.apart) == ("READY", "")
