"""Machines without processes: jobs advance in virtual time, and everything can be made to go wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from astrarium.cluster.live.backend import Ending, MachineStatus, Order, RunKey, RunStatus, Sickness, Snapshot
from astrarium.cluster.live.memory import EndedRun, Memory
from astrarium.cluster.live.policy import pickled_policy
from astrarium.cluster.live.watching.forecast import Forecast, foreseen
from astrarium.cluster.state import ClusterState
from astrarium.core.quantities import SECOND, Time
from astrarium.core.trace import Step


@dataclass
class FakeRun:
    order: Order
    began: Time
    base: float  # of the work that the checkpoint held
    ended: Ending = ""
    kept: float = 0.0
    leaves_at: Time | None = None
    error: str = ""
    resizes: tuple[Order, Time] | None = None
    now: Order | None = None  # as which it goes on

    @property
    def gpus(self) -> tuple[int, ...]:
        return (self.now or self.order).gpus


@dataclass
class FakeBackend:
    """*length* of each job by app; *leaving*: how long leaving takes; *breaks*: runs that fail at once."""

    clock: Callable[[], Time]
    machines: dict[str, MachineStatus]
    length: dict[int, Time]
    leaving: Time = 0
    breaks: set[int] = field(default_factory=set)  # apps
    runs: dict[RunKey, FakeRun] = field(default_factory=dict)
    started: list[RunKey] = field(default_factory=list)
    forgotten: dict[tuple[int, int], float] = field(default_factory=dict)  # checkpoints, by job
    orders: list[Order] = field(default_factory=list)
    retried: list[tuple[str, int]] = field(default_factory=list)
    resizes: bool = False
    slowdown: Callable[[Order], float] = lambda order: 1.0

    def enter(self, epoch: int) -> None:
        pass

    def look(self) -> Snapshot:
        for run in self.runs.values():
            self._advance(run)
        seen = {
            key: RunStatus(
                run.gpus, run.ended, self._part(run), run.kept, run.error, run.now.key.run if run.now else 0
            )
            for key, run in self.runs.items()
        }
        return Snapshot(dict(self.machines), seen)

    def start(self, order: Order) -> None:
        if order.key in self.runs:
            return
        assert order.key not in self.started, "a run is started once"
        self._check_gpus(order)
        self.started.append(order.key)
        self.orders.append(order)
        base = self.forgotten.get((order.key.app, order.key.job), 0.0)
        run = self.runs[order.key] = FakeRun(order, self.clock(), base, kept=base)
        if order.key.app in self.breaks:
            run.ended = "failed"
            run.error = "exit code 1"

    def stop(self, key: RunKey) -> None:
        run = self.runs[key]
        if not run.ended and run.leaves_at is None:
            run.leaves_at = self.clock() + self.leaving

    def forget(self, key: RunKey) -> None:
        assert self.runs[key].ended
        self._keep(self.runs.pop(key))

    def resize(self, key: RunKey, order: Order) -> bool:
        run = self.runs[key]
        if not self.resizes:
            return False
        if run.resizes is None or run.resizes[0].key != order.key:
            run.resizes = order, self.clock() + self.leaving
        return True

    def retry(self, machine: str, gpu: int) -> None:
        self.retried.append((machine, gpu))

    def sicken(self, machine: str, **sick: Sickness) -> None:
        """GPUs by names such as gpu1; those that are not named are well."""
        sicknesses = {int(name.removeprefix("gpu")): sickness for name, sickness in sick.items()}
        self.machines[machine] = msgspec.structs.replace(
            self.machines[machine], sick=sicknesses, watched=True
        )

    def lose(self, machine: str) -> None:
        del self.machines[machine]
        for run in self.runs.values():
            if any(part.machine == machine for part in run.order.parts) and not run.ended:
                run.ended = "lost"
                self._keep(run)

    def _check_gpus(self, order: Order) -> None:
        """No two jobs on a GPU, no job twice: whatever the books say."""
        for run in self.runs.values():
            if not run.ended:
                assert not set(run.gpus) & set(order.gpus), "two jobs on one GPU"
                assert run.order.key[:2] != order.key[:2], "a job that runs twice"

    def _keep(self, run: FakeRun) -> None:
        job = run.order.key.app, run.order.key.job
        self.forgotten[job] = max(run.kept, self.forgotten.get(job, 0.0))

    def _part(self, run: FakeRun) -> float:
        if run.ended:
            return run.kept
        gpus = len(run.gpus) / self.slowdown(run.order)
        return min(1.0, run.base + (self.clock() - run.began) * gpus / self.length[run.order.key.app])

    def _advance(self, run: FakeRun) -> None:
        if run.ended:
            return
        if run.resizes is not None and self.clock() >= run.resizes[1]:
            run.base, run.began = self._part(run), self.clock()
            run.now = run.resizes[0]
            run.resizes = None
            for other in self.runs.values():
                assert other is run or other.ended or not set(other.gpus) & set(run.gpus), "two on one GPU"
        if self._part(run) >= 1.0:
            run.kept = 1.0
            run.ended = "finished"
        elif run.leaves_at is not None and self.clock() >= run.leaves_at:
            run.kept = self._part(run)
            run.ended = "stopped"
            self._keep(run)


@dataclass
class Notebook:
    """A journal in memory; *full*: it cannot be written to, as if the arbiter died there."""

    steps: list[Step] = field(default_factory=list)
    ended: list[EndedRun] = field(default_factory=list)
    memory: bytes = b""
    allocator: object = None
    policy: bytes | None = None
    state: ClusterState = field(default_factory=ClusterState)
    full: bool = False

    def write(self, step: Step, memory: Memory, ended: Sequence[EndedRun]) -> None:
        if self.full:
            raise OSError("no space left")
        self.steps.append(step)
        self.ended += ended
        self.memory, self.policy = msgspec.msgpack.encode(memory), pickled_policy(self.allocator, self.state)


@dataclass
class Clock:
    now: Time = 0

    def __call__(self) -> Time:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


class Immediate:
    """Foresight without another process."""

    def ask(self, now: Time, question: Callable[[], bytes]) -> Forecast | None:
        return foreseen(question())
