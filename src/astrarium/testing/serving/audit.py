"""A second set of books, kept from the trace alone, to compare with the first.

The auditor hears what was recorded (events and actions, instant by instant), works out from the rules
of the contract how every request and batch must have ended and when, and compares with the ledger.
It shares no code with `ServingState` or `ServingWorld`, so that a fault in one does not hide in both.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import pairwise

from astrarium.core.quantities import Time
from astrarium.serving import contract
from astrarium.serving.contract import Request
from astrarium.serving.ledger import Fate, Outcome
from astrarium.serving.record import BATCHES
from astrarium.serving.state import Batch
from astrarium.testing.checks import ensure
from astrarium.testing.played import check_steps
from astrarium.testing.serving.cases import Run


@dataclass
class Sent:
    """A dispatched batch as the auditor saw it leave."""

    run: int
    gpu: int
    requests: tuple[Request, ...]
    ordered: Time
    not_before: Time
    started: Time = -1
    ended: Time = -1
    fate: Fate = Fate.RUNNING


@dataclass
class Expected:
    outcome: Outcome
    at: Time
    run: int = -1
    reason: str | None = None  # None: any reason will do, as long as there is one


@dataclass
class Auditor:
    run: Run
    waiting: dict[int, Request] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    on_gpu: dict[int, deque[Sent]] = field(default_factory=lambda: defaultdict(deque))
    free: dict[int, Time] = field(default_factory=lambda: defaultdict(int))
    absent: set[int] = field(default_factory=set)
    endings: dict[int, Expected] = field(default_factory=dict)

    def hear_all(self) -> None:
        for step in self.run.steps:
            for event in step.events:
                self.hear(step.now, event)
            for action in step.actions:
                self.obey(step.now, action)
        self.close()

    def hear(self, now: Time, event: contract.Event) -> None:
        match event:
            case contract.RequestArrived(request):
                ensure(request.id not in self.waiting | self.endings, f"request {request.id} arrived twice")
                self.waiting[request.id] = request
            case contract.BatchFinished(gpu, run) if self.holds(gpu, run):
                self.finished(now, self.on_gpu[gpu].popleft())
            case contract.BatchFailed(gpu, run, error) if self.holds(gpu, run):
                self.failed(now, self.on_gpu[gpu].popleft(), error)
            case contract.GpuLeft(gpu):
                self.absent.add(gpu)
                while self.on_gpu[gpu]:
                    self.failed(now, self.on_gpu[gpu].popleft(), None)
                self.free[gpu] = now
            case contract.GpuJoined(gpu):
                self.absent.discard(gpu)
            case contract.RequestProfiled(request):
                ended = self.endings.get(request)
                answered = ended is not None and ended.outcome in (Outcome.IN_TIME, Outcome.LATE)
                ensure(answered, f"request {request} was profiled at {now} ns without having finished")
            case contract.BatchPreempted() | contract.BatchFinished() | contract.BatchFailed():
                pass  # stale news, or news of what the auditor foresaw

    def obey(self, now: Time, action: contract.Action) -> None:
        match action:
            case contract.Dispatch():
                self.dispatched(now, action)
            case contract.Drop(request, reason):
                ensure(request in self.waiting, f"request {request} was dropped while it did not wait")
                del self.waiting[request]
                self.endings[request] = Expected(Outcome.DROPPED, now, reason=reason)
            case contract.Preempt(gpu):
                self.preempted(now, gpu)

    def dispatched(self, now: Time, action: contract.Dispatch) -> None:
        ensure(action.gpu not in self.absent, f"{action} at {now} ns goes to a GPU that is not there")
        ensure(len(set(action.requests)) == len(action.requests), f"{action} holds a request twice")
        lost = [request for request in action.requests if request not in self.waiting]
        ensure(not lost, f"{action} at {now} ns sends {lost}, which did not wait")
        requests = tuple(self.waiting.pop(request) for request in action.requests)
        models = {request.model for request in requests}
        ensure(len(models) == 1, f"{action} mixes models {models}")
        model = self.run.case.setup.models[models.pop()]
        ensure(model.can_run(requests), f"{action} is larger than {model.name} can run")
        batch = Sent(len(self.sent), action.gpu, requests, now, action.start)
        self.sent.append(batch)
        self.on_gpu[action.gpu].append(batch)

    def finished(self, now: Time, batch: Sent) -> None:
        self.begin(batch)
        real = Batch(batch.run, batch.requests[0].model, batch.gpu, list(batch.requests), batch.not_before)
        due = batch.started + self.run.case.exact.execution(real)
        ensure(now == due, f"batch {batch.run} ended at {now} ns; with its true execution time: {due}")
        self.end(now, batch, Fate.FINISHED)
        answered = now + self.run.case.setup.network.response
        for request in batch.requests:
            in_time = answered <= request.deadline
            outcome = Outcome.IN_TIME if in_time else Outcome.LATE
            self.endings[request.id] = Expected(outcome, answered, batch.run, "")

    def failed(self, now: Time, batch: Sent, error: str | None) -> None:
        self.begin(batch)
        batch.started = min(batch.started, now)
        self.end(now, batch, Fate.FAILED)
        for request in batch.requests:
            self.endings[request.id] = Expected(Outcome.FAILED, now, batch.run, error)

    def preempted(self, now: Time, gpu: int) -> None:
        ensure(len(self.on_gpu[gpu]) == 1, f"GPU {gpu} was preempted at {now} ns without one batch on it")
        batch = self.on_gpu[gpu].popleft()
        self.begin(batch)
        batch.started = min(batch.started, now)
        self.end(now, batch, Fate.PREEMPTED)
        self.free[gpu] += self.run.case.setup.preemption_cost
        self.waiting.update((request.id, request) for request in batch.requests)

    def holds(self, gpu: int, run: int) -> bool:
        return bool(self.on_gpu[gpu]) and self.on_gpu[gpu][0].run == run

    def begin(self, batch: Sent) -> None:
        """A batch starts once it is there, allowed to, and the GPU is free."""
        there = batch.ordered + self.run.case.setup.network.delay(len(batch.requests))
        batch.started = max(there, batch.not_before, self.free[batch.gpu])

    def end(self, now: Time, batch: Sent, fate: Fate) -> None:
        batch.ended = now
        batch.fate = fate
        self.free[batch.gpu] = now

    def close(self) -> None:
        running = [batch.run for batches in self.on_gpu.values() for batch in batches]
        ensure(not running, f"the run ended, yet nobody heard how batches {running} ended")
        for request in self.waiting:
            self.endings[request] = Expected(Outcome.DROPPED, self.run.end, reason=contract.UNSERVED)


def audit(run: Run) -> Auditor:
    """Raise ContractError unless the run keeps the contract and its ledger tells the truth."""
    check_steps(run.steps)
    auditor = Auditor(run)
    auditor.hear_all()
    _compare_requests(auditor)
    _compare_batches(auditor)
    _one_batch_at_a_time(auditor)
    return auditor


def _compare_requests(auditor: Auditor) -> None:
    ledger = auditor.run.state.ledger
    arrived = {request.id for request in auditor.run.case.requests}
    ensure(auditor.endings.keys() == arrived, f"no ending for {arrived - auditor.endings.keys()}")
    for request, ending in auditor.endings.items():
        reason = ledger.reasons[ledger.reason[request]]
        recorded = (ledger.outcome[request], ledger.done[request], ledger.batch[request])
        ensure(
            recorded == (ending.outcome, ending.at, ending.run),
            f"request {request}: {recorded}, not {ending}",
        )
        ensure(
            reason == (reason if ending.reason is None else ending.reason), f"request {request}: {reason!r}"
        )
        unhappy = ending.outcome in (Outcome.DROPPED, Outcome.FAILED)
        ensure(bool(reason) == unhappy, f"request {request} ended {ending.outcome.name}: reason {reason!r}")


def _compare_batches(auditor: Auditor) -> None:
    ledger = auditor.run.state.ledger
    columns = zip(*(getattr(ledger, f"batch_{name}") for name in BATCHES), strict=True)
    expected = [
        (b.requests[0].model, b.gpu, len(b.requests), b.ordered, b.started, b.ended, b.fate)
        for b in auditor.sent
    ]
    for run, (recorded, truth) in enumerate(zip(columns, expected, strict=True)):
        ensure(recorded == truth, f"batch {run}: the ledger says {recorded}, it was {truth}")


def _one_batch_at_a_time(auditor: Auditor) -> None:
    """From the ledger alone: a GPU's busy time is the sum of its batches because none of them overlap."""
    ledger = auditor.run.state.ledger
    busy = defaultdict(list)
    for gpu, start, end in zip(ledger.batch_gpu, ledger.batch_started, ledger.batch_finished, strict=True):
        ensure(0 <= start <= end, f"a batch on GPU {gpu} ran from {start} to {end} ns")
        busy[gpu].append((start, end))
    for gpu, spans in busy.items():
        for before, after in pairwise(sorted(spans)):
            ensure(before[1] <= after[0], f"GPU {gpu} ran two batches at once: {before} and {after}")
