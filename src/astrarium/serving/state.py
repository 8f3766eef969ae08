"""The state of the serving level is its books: which requests wait, what runs where, how every request ended.

A request is in exactly one of: waiting, in a batch on a GPU, ended. Late news (a batch that finished
after it was preempted, a GPU that left twice) is recognized by run numbers and ignored.
"""

from __future__ import annotations

from collections import deque

from astrarium.core.errors import BrokenBooks, InvalidAction
from astrarium.core.policy import Handlers, LevelState, nothing_changes
from astrarium.core.quantities import Time
from astrarium.serving import contract
from astrarium.serving.contract import Request, Setup
from astrarium.serving.ledger import Fate, Ledger, Outcome


class Batch:
    """A batch is requests of one model sent to a GPU together; `run` is its number in the ledger."""

    __slots__ = ("gpu", "model", "requests", "run", "start")

    def __init__(self, run: int, model: int, gpu: int, requests: list[Request], start: Time) -> None:
        self.run = run
        self.model = model
        self.gpu = gpu
        self.requests = requests
        self.start = start


class Gpu:
    """A GPU's `batches` are on their way or running, first come first run; it may be `recovering`.

    `since` is when the last batch ended: the next one cannot have started before.
    """

    __slots__ = ("batches", "id", "present", "recovering", "since")

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.present = True
        self.recovering = -1
        self.since = 0
        self.batches: deque[Batch] = deque()

    @property
    def idle(self) -> bool:
        return self.present and not self.batches and self.recovering < 0


class ServingState(LevelState[contract.Event, contract.Action]):
    level = "serving"

    def __init__(self, setup: Setup, ledger: Ledger | None = None) -> None:
        self.setup = setup
        self.ledger = ledger or Ledger()
        self.waiting: dict[int, Request] = {}
        self.gpus = [Gpu(gpu.id) for gpu in setup.gpus]
        self._arrived = 0
        self._ended = 0
        self._network = setup.network
        self._response = setup.network.response
        events: Handlers = {
            contract.RequestArrived: self._request_arrived,
            contract.BatchFinished: self._batch_finished,
            contract.BatchFailed: self._batch_failed,
            contract.BatchPreempted: self._batch_preempted,
            contract.GpuJoined: self._gpu_joined,
            contract.GpuLeft: self._gpu_left,
            contract.RequestProfiled: nothing_changes,
        }
        actions: Handlers = {
            contract.Dispatch: self._dispatch,
            contract.Drop: self._drop,
            contract.Preempt: self._preempt,
        }
        super().__init__(events, actions)

    def close(self, now: Time) -> None:
        for request in list(self.waiting):
            self._drop(now, contract.Drop(request, contract.UNSERVED))
        for gpu in self.gpus:
            self._fail_all(now, gpu, "the run ended before the batch did")

    def _request_arrived(self, now: Time, event: contract.RequestArrived) -> None:
        request = event.request
        self.waiting[request.id] = request
        self.ledger.open_request(request.id)
        self._arrived += 1

    def _batch_finished(self, now: Time, event: contract.BatchFinished) -> None:
        batch = self._take_batch(now, event.gpu, event.run)
        if batch is None:
            return
        end = self.ledger.end_request
        answered = now + self._response
        for request in batch.requests:
            outcome = Outcome.IN_TIME if answered <= request.deadline else Outcome.LATE
            end(request.id, outcome, "", answered, batch.run)
        self._ended += len(batch.requests)
        self.ledger.end_batch(batch.run, Fate.FINISHED, event.started, now)

    def _batch_failed(self, now: Time, event: contract.BatchFailed) -> None:
        gpu = self.gpus[event.gpu]
        started = self._begun(now, gpu)
        batch = self._take_batch(now, event.gpu, event.run)
        if batch is not None:
            self._fail(now, batch, started, event.error)

    def _batch_preempted(self, now: Time, event: contract.BatchPreempted) -> None:
        gpu = self.gpus[event.gpu]
        if gpu.recovering == event.run:
            gpu.recovering = -1
            gpu.since = now
            self.ledger.end_batch(event.run, Fate.PREEMPTED, event.started, event.stopped)

    def _gpu_joined(self, now: Time, event: contract.GpuJoined) -> None:
        self.gpus[event.gpu].present = True

    def _gpu_left(self, now: Time, event: contract.GpuLeft) -> None:
        gpu = self.gpus[event.gpu]
        gpu.present = False
        gpu.recovering = -1
        self._fail_all(now, gpu, f"GPU {gpu.id} left")

    def _dispatch(self, now: Time, action: contract.Dispatch) -> None:
        gpu = self._present(now, action)
        try:
            requests = [self.waiting.pop(id_) for id_ in action.requests]
        except KeyError as error:
            raise InvalidAction(f"at {now} ns: {action!r}: request {error} is not waiting") from None
        if not requests or any(request.model != requests[0].model for request in requests):
            raise InvalidAction(f"at {now} ns: {action!r}: a batch holds requests of one model, at least one")
        model = self.setup.models[requests[0].model]
        if not model.can_run(requests):
            most = f"at most {model.max_batch}" if model.lengths is None else "fewer of these lengths"
            raise InvalidAction(f"at {now} ns: {action!r}: {model.name} runs {most} at once")
        run = self.ledger.open_batch(model.index, gpu.id, len(requests), now)
        gpu.batches.append(Batch(run, model.index, gpu.id, requests, action.start))

    def _drop(self, now: Time, action: contract.Drop) -> None:
        if self.waiting.pop(action.request, None) is None:
            raise InvalidAction(f"at {now} ns: {action!r}: request {action.request} is not waiting")
        self.ledger.end_request(action.request, Outcome.DROPPED, action.reason, now)
        self._ended += 1

    def _preempt(self, now: Time, action: contract.Preempt) -> None:
        gpu = self._present(now, action)
        if len(gpu.batches) != 1:
            raise InvalidAction(f"at {now} ns: {action!r}: the GPU holds {len(gpu.batches)} batches, not one")
        started = self._begun(now, gpu)
        batch = gpu.batches.popleft()
        gpu.recovering = batch.run
        gpu.since = now
        self.ledger.end_batch(batch.run, Fate.PREEMPTED, started, now)  # until its start is reported
        for request in batch.requests:
            self.waiting[request.id] = request

    def _present(self, now: Time, action: contract.Dispatch | contract.Preempt) -> Gpu:
        if not 0 <= action.gpu < len(self.gpus) or not self.gpus[action.gpu].present:
            raise InvalidAction(f"at {now} ns: {action!r}: there is no GPU {action.gpu}")
        return self.gpus[action.gpu]

    def _take_batch(self, now: Time, gpu_id: int, run: int) -> Batch | None:
        gpu = self.gpus[gpu_id]
        if not gpu.batches or gpu.batches[0].run != run:
            return None
        gpu.since = now
        return gpu.batches.popleft()

    def _begun(self, now: Time, gpu: Gpu) -> Time:
        """Return when the GPU's first batch began, as far as the books can tell; now if it has not."""
        if not gpu.batches:
            return now
        batch = gpu.batches[0]
        there = self.ledger.batch_dispatched[batch.run] + self._network.delay(len(batch.requests))
        return min(now, max(there, batch.start, gpu.since))

    def _fail_all(self, now: Time, gpu: Gpu, error: str) -> None:
        while gpu.batches:
            started = self._begun(now, gpu)
            self._fail(now, gpu.batches.popleft(), started, error)
            gpu.since = now

    def _fail(self, now: Time, batch: Batch, started: Time, error: str) -> None:
        for request in batch.requests:
            self.ledger.end_request(request.id, Outcome.FAILED, error, now, batch.run)
        self._ended += len(batch.requests)
        self.ledger.end_batch(batch.run, Fate.FAILED, started, now)

    def validate(self) -> None:
        """Check that every request is in exactly one place, and that batches run requests of their model."""
        batches = [batch for gpu in self.gpus for batch in gpu.batches]
        running = [request.id for batch in batches for request in batch.requests]
        if len(set(running)) != len(running) or not self.waiting.keys().isdisjoint(running):
            raise BrokenBooks("a request is in two places")
        if self._arrived != len(self.waiting) + len(running) + self._ended:
            raise BrokenBooks(
                f"{self._arrived} requests arrived, but {len(self.waiting)} wait, {len(running)} run "
                f"and {self._ended} have ended"
            )
        for batch in batches:
            if any(request.model != batch.model for request in batch.requests):
                raise BrokenBooks(f"batch {batch.run} mixes models")
