"""Worker queues hold requests that still have to become batches, or batches that a router made.

Without a router a request goes to the replica of its model with the least to do for its speed and waits there
alone. A free replica takes those that came first, up to its batch: at once if that is full, else when the
oldest has waited long enough.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time
from astrarium.placement.interference import Interference, Tenant, share_factor
from astrarium.placement.path import BatchJourney, Instants, Journeys, Path, journeys, routed
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.problem import PlacedModel, PlacementGpu, PlacementRequests, Problem

FINISHED, ARRIVED, WAITED = range(3)  # in this order where they fall together


class Crowd:
    """A crowd is the stages on one GPU, which slow each other.

    `sizes` are those of their batches now (0: idle), `paces` how many times as long as alone they take.
    """

    def __init__(self, gpu: PlacementGpu, interference: Interference) -> None:
        self.gpu = gpu
        self.interference = interference
        self.stages: list[Stage] = []
        self.sizes: list[int] = []
        self.paces: Sequence[float] = ()
        self._known: dict[tuple[int, ...], Sequence[float]] = {}

    def enter(self, stage: Stage) -> int:
        self.stages.append(stage)
        self.sizes.append(0)
        return len(self.sizes) - 1

    def changed(self, place: int, size: int) -> None:
        """Update the paces for a stage's batch size; they are remembered, as few combinations occur."""
        self.sizes[place] = size
        key = tuple(self.sizes)
        known = self._known.get(key)
        if known is None:
            tenants = [stage.tenant(size) for stage, size in zip(self.stages, key, strict=True)]
            known = self._known[key] = self.interference.slowdowns(self.gpu, tenants)
        self.paces = known


class Stage:
    """A stage of a replica runs one batch at a time.

    `work[b]` is how long a batch of b takes alone on its share; `left` of the present one. `turn` counts
    announcements of an end: only the last one holds.
    """

    def __init__(
        self, worker: ReplicaWorker, replica: Replica, work: tuple[Time, ...], crowds: Sequence[Crowd]
    ) -> None:
        self.worker = worker
        self.replica = replica
        self.work = work
        self.crowds = [(crowd, crowd.enter(self)) for crowd in crowds]
        self.first = True
        self.following: Stage | None = None
        self.waiting: deque[BatchJourney] = deque()
        self.batch: BatchJourney | None = None
        self.left = self.pace = 0.0
        self.since = self.began = self.turn = 0

    def follow(self, stage: Stage) -> None:
        self.first = False
        stage.following = self

    def tenant(self, size: int) -> Tenant:
        return Tenant(self.replica.model, size or len(self.work) - 1, self.replica.share, size > 0)

    @cached_property
    def lonely(self) -> bool:
        """Whether no other stage is on its GPUs; asked only when all have entered."""
        return all(len(crowd.stages) == 1 for crowd, _ in self.crowds)

    def felt(self) -> float:
        """Return the pace that the other stages on its GPUs allow."""
        if len(self.crowds) == 1:
            crowd, place = self.crowds[0]
            return crowd.paces[place]
        return max(crowd.paces[place] for crowd, place in self.crowds)


class StageEvents:
    """Stage events are run in the order of time, for all stages together."""

    def __init__(self) -> None:
        self._events: list[tuple[Time, int, int, int, Stage]] = []
        self._count = 0

    def run_before(self, at: Time) -> None:
        """Run all events that come before an arrival at that instant."""
        events = self._events
        while events and (events[0][0] < at or (events[0][0] == at and events[0][1] == FINISHED)):
            now, kind, _, turn, stage = heapq.heappop(events)
            if kind == WAITED:
                stage.worker.opened(now)
            elif turn == stage.turn:
                self._finished(now, stage)

    def run_out(self) -> None:
        """Run events until there are none."""
        while self._events:
            self.run_before(self._events[0][0] + 1)

    def wake(self, at: Time, first: Stage) -> None:
        self._push(at, WAITED, first)

    def begin(self, now: Time, stage: Stage, batch: BatchJourney) -> None:
        size = len(batch.members)
        stage.batch, stage.left, stage.since, stage.pace = batch, float(stage.work[size]), now, 0.0
        stage.began = now
        self._changed(now, stage, size)

    def _finished(self, now: Time, stage: Stage) -> None:
        batch = stage.batch
        stage.batch = None
        assert batch is not None
        batch.stays.append((stage.began, now))
        self._changed(now, stage, 0)
        if stage.following is not None:
            stage.following.waiting.append(batch)
            self._next(now, stage.following)
        else:
            batch.done = now
            stage.worker.left(batch)
        if stage.first:
            stage.worker.opened(now)
        else:
            self._next(now, stage)

    def _next(self, now: Time, stage: Stage) -> None:
        if stage.batch is None and stage.waiting:
            self.begin(now, stage, stage.waiting.popleft())

    def _changed(self, now: Time, stage: Stage, size: int) -> None:
        if stage.lonely and not size:
            return  # nobody hears of its end
        for crowd, place in stage.crowds:
            crowd.changed(place, size)
        for crowd, _ in stage.crowds:
            for other in crowd.stages:
                if other.batch is not None and (pace := other.felt()) != other.pace:
                    self._at_pace(now, other, pace)

    def _at_pace(self, now: Time, stage: Stage, pace: float) -> None:
        if stage.pace:
            stage.left = max(0.0, stage.left - (now - stage.since) / stage.pace)
        stage.pace = pace
        stage.since = now
        stage.turn += 1
        self._push(now + math.ceil(stage.left * pace), FINISHED, stage)

    def _push(self, at: Time, kind: int, stage: Stage) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, kind, self._count, stage.turn, stage))


class Batching(msgspec.Struct, frozen=True):
    """Batching says how worker queues make batches.

    *max_wait* is how long the oldest request waits for others to fill a batch (None: half of its objective,
    0: not at all); where a path is given, its router does this instead. A request that has missed its
    deadline is dropped when a batch is made (*drop_expired*), or answered late.
    """

    max_wait: Time | None = None
    drop_expired: bool = False


class ReplicaWorker:
    """A replica worker is a replica with its queue.

    `inside` are requests that wait or run, `slowest` is how long the slowest stage takes for a full batch.
    """

    def __init__(self, simulation: PlanSimulation, model: PlacedModel, replica: Replica) -> None:
        self.simulation = simulation
        self.model = model
        self.replica = replica
        self.stages = [simulation.stage(self, place) for place in range(replica.shape.stages)]
        for earlier, later in zip(self.stages, self.stages[1:], strict=False):
            later.follow(earlier)
        self.first = self.stages[0]
        self.batch = len(self.first.work) - 1
        self.slowest = max(stage.work[-1] for stage in self.stages)
        self.inside = 0
        self.requests: deque[int] = deque()
        self.batches: deque[BatchJourney] = deque()
        wait = simulation.batching.max_wait
        self.max_wait = model.slo // 2 if wait is None else wait
        self.waking: Time = -1

    def backlog(self) -> float:
        """Return how long the worker would take with one more request, in full batches."""
        return (self.inside + 1) * self.slowest / self.batch

    def left(self, batch: BatchJourney) -> None:
        """Hear that a batch has been through all stages."""
        self.inside -= len(batch.members)

    def opened(self, now: Time) -> None:
        """Hear that the first stage is free, or that somebody has waited long enough."""
        if self.first.batch is not None:
            return
        batch = self._sent(now) if self.batches else self._gathered(now) if self.requests else None
        if batch is not None:
            batch.start = now
            batch.replica = self.replica
            self.simulation.begun.append(batch)
            self.simulation.events.begin(now, self.first, batch)

    def _sent(self, now: Time) -> BatchJourney | None:
        """Return the next batch of the router, if there is one."""
        while self.batches:
            batch = self.batches.popleft()
            if self.simulation.batching.drop_expired:
                batch.members = [number for number in batch.members if self._in_time(number, now)]
            if batch.members:
                return batch
        return None

    def _gathered(self, now: Time) -> BatchJourney | None:
        """Return a batch if it is full, or its oldest request has waited enough."""
        requests = self.requests
        times = self.simulation.times
        if self.simulation.batching.drop_expired:
            while requests and not self._in_time(requests[0], now):
                requests.popleft()
                self.inside -= 1
            if not requests:
                return None
        due = times[requests[0]] + self.max_wait
        full = len(requests) >= self.batch
        if not full and now < due:
            self._wake(due)
            return None
        members = [requests.popleft() for _ in range(min(self.batch, len(requests)))]
        return BatchJourney(members, times[members[-1]] if full else due)

    def _in_time(self, number: int, now: Time) -> bool:
        return self.simulation.times[number] + self.model.slo > now

    def _wake(self, at: Time) -> None:
        if self.waking != at:
            self.waking = at
            self.simulation.events.wake(at, self.first)


class PlanSimulation:
    """A plan simulation runs requests through all replicas of a plan."""

    def __init__(self, problem: Problem, plan: Plan, interference: Interference, batching: Batching) -> None:
        self.problem = problem
        self.batching = batching
        self.events = StageEvents()
        self._crowds = {gpu.id: Crowd(gpu, interference) for gpu in problem.gpus}
        models = {model.index: model for model in problem.models}
        workers = [ReplicaWorker(self, models[replica.model], replica) for replica in plan.replicas]
        self._of_model = {index: [w for w in workers if w.model.index == index] for index in models}
        self.begun: list[BatchJourney] = []
        self.times: Sequence[Time] = ()

    def stage(self, worker: ReplicaWorker, place: int) -> Stage:
        model = worker.model
        replica = worker.replica
        width = worker.replica.shape.operators
        form = model.forms[replica.shape]
        crowds = [self._crowds[gpu] for gpu in replica.gpus[place * width : (place + 1) * width]]
        times = form.stage_times[place][1 : min(replica.batch, form.max_batch) + 1]
        gpus = [crowd.gpu for crowd in crowds]
        work = (round(t * _part(model, gpus, b, replica.share)) for b, t in enumerate(times, start=1))
        return Stage(worker, replica, (0, *work), crowds)

    def run(self, requests: PlacementRequests, path: Path | None) -> Journeys:
        unknown = set(requests.models) - self._of_model.keys()
        if unknown:
            raise InputError("requests", min(unknown), "models of the problem")
        self.times = requests.times
        client = np.zeros(len(requests.times), dtype=np.int64)
        if path is None:
            self._run_requests(requests)
        else:
            client = self._run_batches(requests, path)
        return journeys(requests, self.begun, client)

    def _run_requests(self, requests: PlacementRequests) -> None:
        run_before = self.events.run_before
        of_model = self._of_model
        for number, (at, model) in enumerate(zip(requests.times, requests.models, strict=True)):
            run_before(at)
            workers = of_model[model]
            if workers:
                worker = workers[0] if len(workers) == 1 else min(workers, key=ReplicaWorker.backlog)
                worker.inside += 1
                worker.requests.append(number)
                worker.opened(at)
        self.events.run_out()

    def _run_batches(self, requests: PlacementRequests, path: Path) -> Instants:
        times = np.array(requests.times, dtype=np.int64)
        models = np.array(requests.models)
        client = np.zeros(len(times), dtype=np.int64)
        sent: list[tuple[ReplicaWorker, BatchJourney]] = []
        for model in self.problem.models:
            numbers = np.flatnonzero(models == model.index)
            client[numbers] = path.client.of(1, path.payload(model.name).input)
            instants = (times[numbers] + client[numbers]).tolist()
            workers = self._of_model[model.index]
            sizes = [worker.batch for worker in workers]
            if workers:
                found = routed(path, model.name, numbers.tolist(), instants, sizes)
                sent += [(workers[place], batch) for place, batch in found]
        self._run_sent(sorted(sent, key=lambda each: each[1].here))
        return client

    def _run_sent(self, sent: Sequence[tuple[ReplicaWorker, BatchJourney]]) -> None:
        for worker, batch in sent:
            self.events.run_before(batch.here)
            worker.batches.append(batch)
            worker.opened(batch.here)
        self.events.run_out()


def _part(model: PlacedModel, gpus: Sequence[PlacementGpu], batch: int, share: float) -> float:
    return max(share_factor(model, gpu, batch, share) for gpu in gpus)
