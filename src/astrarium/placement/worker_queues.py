"""Worker queues hold requests that still have to become batches, or batches that a router made.

Without a router a request goes to the replica of its model with the least to do for its speed and waits there
alone. A free replica takes those that came first, up to its batch: at once if that is full, else when the
oldest has waited long enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time
from astrarium.placement.gpu_share import share_factor
from astrarium.placement.interference import Interference
from astrarium.placement.path import BatchJourney, Instants, Journeys, Path, journeys, routed
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.problem import PlacedModel, PlacementGpu, PlacementRequests, Problem
from astrarium.placement.stages import SharedGpu, Stage, StageEvents


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
        self._shared_gpus = {gpu.id: SharedGpu(gpu, interference) for gpu in problem.gpus}
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
        shared_gpus = [self._shared_gpus[gpu] for gpu in replica.gpus[place * width : (place + 1) * width]]
        times = form.stage_times[place][1 : min(replica.batch, form.max_batch) + 1]
        gpus = [shared.gpu for shared in shared_gpus]
        work = (round(t * _part(model, gpus, b, replica.share)) for b, t in enumerate(times, start=1))
        return Stage(worker, replica, (0, *work), shared_gpus)

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
                batches = routed(path, model.name, numbers.tolist(), instants, sizes)
                sent += [(workers[place], batch) for place, batch in batches]
        self._run_sent(sorted(sent, key=lambda pair: pair[1].here))
        return client

    def _run_sent(self, sent: Sequence[tuple[ReplicaWorker, BatchJourney]]) -> None:
        for worker, batch in sent:
            self.events.run_before(batch.here)
            worker.batches.append(batch)
            worker.opened(batch.here)
        self.events.run_out()


def _part(model: PlacedModel, gpus: Sequence[PlacementGpu], batch: int, share: float) -> float:
    return max(share_factor(model, gpu, batch, share) for gpu in gpus)
