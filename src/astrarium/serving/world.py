"""The simulated world of the serving level says what becomes of a dispatch, and when.

The truth lives here: execution times by kind of GPU, and for dynamic models the time that each single
request really takes. Policies see estimates only, and what a profiler measures of some finished requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from astrarium.core.profiles import ByLength, Dynamic
from astrarium.core.quantities import Time
from astrarium.run.simulate import World
from astrarium.serving import contract
from astrarium.serving.contract import Action, Event, Request, Setup
from astrarium.serving.ledger import Fate
from astrarium.serving.state import Batch, Gpu, ServingState


class Truth(Protocol):
    """The truth says how long a batch really takes. Only the simulated world asks: policies estimate."""

    def execution(self, batch: Batch) -> Time: ...


class TableTruth:
    """The truth of predictable models is a table by kind of GPU, model and batch size."""

    def __init__(self, kind_of_gpu: Sequence[int], tables: Sequence[Sequence[Sequence[Time]]]) -> None:
        self._by_gpu = [tables[kind] for kind in kind_of_gpu]

    @classmethod
    def of(cls, setup: Setup) -> TableTruth:
        """Return the truth that policies believe: their estimates."""
        return cls([0] * len(setup.gpus), [[model.latency for model in setup.models]])

    def execution(self, batch: Batch) -> Time:
        return self._by_gpu[batch.gpu][batch.model][len(batch.requests)]


class LengthTruth:
    """The truth of models whose requests have lengths is a profile by length on every GPU."""

    def __init__(self, profiles: Mapping[int, Sequence[ByLength]], others: Truth) -> None:
        self._profiles = profiles  # by model, then by GPU
        self._others = others
        self._tables: dict[tuple[int, int, int], tuple[Time, ...]] = {}  # by model, GPU and length

    def execution(self, batch: Batch) -> Time:
        if batch.model not in self._profiles:
            return self._others.execution(batch)
        profile = self._profiles[batch.model][batch.gpu]
        runs = profile.runs([request.length for request in batch.requests])
        return sum(self._times(batch, length)[size - 1] for size, length in runs)

    def _times(self, batch: Batch, length: int) -> tuple[Time, ...]:
        key = batch.model, batch.gpu, length
        if key not in self._tables:
            self._tables[key] = self._profiles[batch.model][batch.gpu].times(length)
        return self._tables[key]


class DynamicTruth:
    """*work* holds every request's own time, by its id; models without a dynamic profile follow *tables*."""

    def __init__(self, work: Sequence[Time], profiles: Mapping[int, Dynamic], tables: Truth) -> None:
        self._work = work
        self._profiles = profiles
        self._tables = tables

    def execution(self, batch: Batch) -> Time:
        profile = self._profiles.get(batch.model)
        if profile is None:
            return self._tables.execution(batch)
        longest = max(self._work[request.id] for request in batch.requests)
        return profile.batch_time(len(batch.requests), longest)


@dataclass(frozen=True)
class Profiler:
    """A profiler runs some finished requests again, alone, off the GPUs that serve.

    By request: `chosen` says whether it is one of them, `work` what it takes. The policy hears of it
    `delay` after its batch has ended (in a later instant at any rate: knowledge takes time).
    """

    chosen: Sequence[bool]
    work: Sequence[Time]
    delay: Time

    def reports(self, ended: Time, requests: Sequence[Request]) -> Iterator[tuple[Time, Event]]:
        heard = ended + max(1, self.delay)
        for request in requests:
            id_ = request.id
            yield heard, contract.RequestProfiled(id_, request.model, request.application, self.work[id_])


class ServingWorld(World[Action, Event, ServingState]):
    def __init__(self, setup: Setup, truth: Truth, profiler: Profiler | None = None) -> None:
        self._network = setup.network
        self._preemption_cost = setup.preemption_cost
        self._truth = truth
        self._free = [0] * len(setup.gpus)  # when each GPU will really have finished what it was sent
        self._started = [0] * len(setup.gpus)  # and when the last batch sent to it starts
        self._last_run = [-1] * len(setup.gpus)
        self._profiler = profiler
        self._to_profile: dict[int, list[Request]] = {}  # by run, while it has not ended

    def consequences(self, now: Time, action: Action, state: ServingState) -> Iterator[tuple[Time, Event]]:
        if type(action) is contract.Dispatch:
            seen = self._last_run[action.gpu]
            gpu = state.gpus[action.gpu]
            for batch in gpu.batches:
                if batch.run > seen:
                    if batch is gpu.batches[0] and gpu.recovering < 0:
                        self._free[gpu.id] = min(self._free[gpu.id], now)  # it may have left and come back
                    yield self._run(now, batch)
                    break
        elif type(action) is contract.Preempt:
            yield self._stop(now, state.gpus[action.gpu])

    def aftermath(self, now: Time, event: Event, state: ServingState) -> Iterator[tuple[Time, Event]]:
        """Profile requests once their batch has ended well: news of a cancelled one counts nothing."""
        if self._profiler is None or type(event) is not contract.BatchFinished:
            return
        chosen = self._to_profile.pop(event.run, None)
        if chosen and state.ledger.batch_fate[event.run] == Fate.FINISHED:
            yield from self._profiler.reports(now, chosen)

    def _run(self, now: Time, batch: Batch) -> tuple[Time, Event]:
        if self._profiler is not None:
            chosen = self._profiler.chosen
            self._to_profile[batch.run] = [request for request in batch.requests if chosen[request.id]]
        gpu = batch.gpu
        ready = now + self._network.delay(len(batch.requests))
        start = self._started[gpu] = max(ready, batch.start, self._free[gpu])
        finish = self._free[gpu] = start + self._truth.execution(batch)
        self._last_run[gpu] = batch.run
        return finish, contract.BatchFinished(gpu, batch.run, start)

    def _stop(self, now: Time, gpu: Gpu) -> tuple[Time, Event]:
        recovered = self._free[gpu.id] = now + self._preemption_cost
        started = min(now, self._started[gpu.id])
        return recovered, contract.BatchPreempted(gpu.id, gpu.recovering, started, now)
