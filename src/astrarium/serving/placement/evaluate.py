"""What a plan is worth: requests in queues before replicas that share GPUs, event by event.

A request goes to the replica of its model with the least to do for its speed and waits there. A free replica
takes those that came first, up to its batch: at once if that is full, else when the oldest has waited long
enough. While several replicas of a GPU are at work they slow each other (`interference`); whenever one starts
or ends, the others go on at another pace.

Replicas over several GPUs have a simulator of their own (`simulation`).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.units import FOREVER, SECOND, Time
from astrarium.serving.placement.evaluation import Evaluation, Times, summarized
from astrarium.serving.placement.interference import Interference, NoInterference, Tenant
from astrarium.serving.placement.plan import Plan, Replica, check
from astrarium.serving.placement.problem import ALONE, PlacementGpu, Problem, Requests
from astrarium.serving.placement.sharing import share_factor

_FINISHED, _ARRIVED, _WAITED = range(3)  # in this order where they fall together


class Batching(msgspec.Struct, frozen=True):
    """*max_wait* is how long the oldest waits for others to fill a batch (None: half of its objective, 0: not
    at all). Who has missed its deadline is dropped when a batch is made, or answered late."""

    max_wait: Time | None = None
    drop_expired: bool = False


def poisson(problem: Problem, duration: Time, draw: Callable[[], float]) -> Requests:
    """Requests at the models' rates. Chance is handed in: *draw* gives uniform numbers in [0, 1)."""
    found: list[tuple[Time, int]] = []
    for model in problem.models:
        at = 0.0
        while model.rate > 0:
            at -= math.log1p(-draw()) * SECOND / model.rate
            if at >= duration:
                break
            found.append((round(at), model.index))
    found.sort()
    return Requests(tuple(at for at, _ in found), tuple(model for _, model in found))


def evaluate(
    problem: Problem,
    plan: Plan,
    requests: Requests,
    interference: Interference | None = None,
    batching: Batching | None = None,
    warmup: Time = 0,
) -> Evaluation:
    """Requests that arrive before *warmup* load the GPUs and are not counted."""
    check(plan, problem)
    if any(later < sooner for sooner, later in pairwise(requests.times)):
        raise InputError("requests", None, "instants in rising order")
    house = _House(problem, plan, interference or NoInterference(), batching or Batching())
    times = house.run(requests)
    return summarized(problem, requests, times, warmup)


@dataclass(eq=False)
class _Worker:
    """A replica. `work[b]` is how long a batch of b takes alone on its share; `left` of the present one."""

    replica: Replica
    work: tuple[Time, ...]
    max_wait: Time
    queue: deque[int] = field(default_factory=deque)
    running: tuple[int, ...] = ()
    left: float = 0.0
    slowdown: float = 1.0
    since: Time = 0
    turn: int = 0  # counts announcements of an end: only the last one holds
    waking: Time = -1

    @property
    def batch(self) -> int:
        return len(self.work) - 1

    def backlog(self) -> float:
        """How long it would take with one more, in full batches."""
        return (len(self.queue) + len(self.running) + 1) * self.work[-1] / self.batch

    def tenant(self) -> Tenant:
        return Tenant(
            self.replica.model, len(self.running) or self.batch, self.replica.share, bool(self.running)
        )


class _House:
    def __init__(self, problem: Problem, plan: Plan, interference: Interference, batching: Batching) -> None:
        self._slo = {model.index: model.slo for model in problem.models}
        self._gpus = {gpu.id: gpu for gpu in problem.gpus}
        self._interference, self._batching = interference, batching
        self._known: dict[tuple[int, tuple[Tenant, ...]], tuple[float, ...]] = {}
        workers = [self._worker(problem, replica) for replica in plan.replicas]
        self._of_gpu = {id_: [w for w in workers if w.replica.gpus == (id_,)] for id_ in self._gpus}
        self._of_model = {index: [w for w in workers if w.replica.model == index] for index in self._slo}
        self._events: list[tuple[Time, int, int, int, _Worker]] = []
        self._count = 0

    def _worker(self, problem: Problem, replica: Replica) -> _Worker:
        model = next(model for model in problem.models if model.index == replica.model)
        if replica.shape != ALONE:
            raise InputError("plan", str(replica.shape), "replicas on one GPU each")
        form, gpu = model.forms[ALONE], self._gpus[replica.gpus[0]]
        sizes = range(1, min(replica.batch, form.max_batch) + 1)
        work = (round(form.latency(b) * share_factor(model, gpu, b, replica.share)) for b in sizes)
        wait = self._batching.max_wait
        return _Worker(replica, (0, *work), model.slo // 2 if wait is None else wait)

    def run(self, requests: Requests) -> Times:
        self._requests, self._times = requests, Times(len(requests.times))
        arrivals = enumerate(zip(requests.times, requests.models, strict=True))
        number, (at, model) = next(arrivals, (-1, (FOREVER, -1)))
        while number >= 0 or self._events:
            if self._events and self._events[0][:2] < (at, _ARRIVED):
                self._happened()
                continue
            self._arrived(at, number, model)
            number, (at, model) = next(arrivals, (-1, (FOREVER, -1)))
        return self._times

    def _happened(self) -> None:
        now, kind, _, turn, worker = heapq.heappop(self._events)
        if kind == _WAITED:
            self._start(now, worker)
        elif turn == worker.turn:
            self._finished(now, worker)

    def _arrived(self, now: Time, number: int, model: int) -> None:
        if model not in self._of_model:
            raise InputError("requests", model, "models of the problem")
        workers = self._of_model[model]
        if workers:
            worker = min(workers, key=_Worker.backlog)
            worker.queue.append(number)
            self._start(now, worker)

    def _start(self, now: Time, worker: _Worker) -> None:
        """If it is free, and the batch full or old enough."""
        if worker.running:
            return
        if self._batching.drop_expired:
            while worker.queue and self._deadline(worker, worker.queue[0]) <= now:
                worker.queue.popleft()
        if not worker.queue:
            return
        due = self._requests.times[worker.queue[0]] + worker.max_wait
        if len(worker.queue) < worker.batch and now < due:
            self._wake(due, worker)
            return
        size = min(worker.batch, len(worker.queue))
        worker.running = tuple(worker.queue.popleft() for _ in range(size))
        worker.left, worker.since, worker.slowdown = float(worker.work[size]), now, 0.0
        self._times.started(now, due, worker.running, worker.batch, worker.work[size], self._requests)
        self._new_pace(now, worker.replica.gpus[0])

    def _deadline(self, worker: _Worker, number: int) -> Time:
        return self._requests.times[number] + self._slo[worker.replica.model]

    def _finished(self, now: Time, worker: _Worker) -> None:
        for number in worker.running:
            self._times.done[number] = now
        worker.running = ()
        self._new_pace(now, worker.replica.gpus[0])
        self._start(now, worker)

    def _new_pace(self, now: Time, gpu: int) -> None:
        workers = self._of_gpu[gpu]
        paces = self._slowdowns(self._gpus[gpu], tuple(worker.tenant() for worker in workers))
        for worker, pace in zip(workers, paces, strict=True):
            if worker.running and pace != worker.slowdown:
                if worker.slowdown:
                    worker.left = max(0.0, worker.left - (now - worker.since) / worker.slowdown)
                worker.slowdown, worker.since, worker.turn = pace, now, worker.turn + 1
                self._push(now + math.ceil(worker.left * pace), _FINISHED, worker)

    def _slowdowns(self, gpu: PlacementGpu, tenants: tuple[Tenant, ...]) -> Sequence[float]:
        """Remembered: the same few companies meet again and again."""
        key = (gpu.id, tenants)
        if key not in self._known:
            self._known[key] = self._interference.slowdowns(gpu, tenants)
        return self._known[key]

    def _wake(self, at: Time, worker: _Worker) -> None:
        if worker.waking != at:
            worker.waking = at
            self._push(at, _WAITED, worker)

    def _push(self, at: Time, kind: int, worker: _Worker) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, kind, self._count, worker.turn, worker))
