"""A backend in virtual time: trials that train nowhere, GPUs that come and go, processes that die."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil

from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.tuning.live.backend import Checkpoint, Ending, GpusSeen, Iterated, News, RunEnded, Work
from astrarium.tuning.live.loop.live_tuning import LiveTuning
from astrarium.tuning.runtime import Runtime


class Clock:
    def __init__(self) -> None:
        self.now: Time = 0

    def __call__(self) -> Time:
        return self.now


@dataclass
class Training:
    """After `since`, iteration by iteration."""

    work: Work
    done: int
    since: Time
    iteration: float
    first: int = field(init=False)
    begun: Time = field(init=False)  # the iteration that runs
    ends: Time = field(init=False)
    leaves: Time = FOREVER

    def __post_init__(self) -> None:
        self.first = self.done
        self.begun = self.since
        self.ends = self.end_of_next()

    def end_of_next(self) -> Time:
        return self.since + max(1, ceil((self.done + 1 - self.first) * self.iteration))

    def slowed(self, now: Time, iteration: float) -> None:
        """What is left of the iteration goes on at another pace."""
        part = (self.ends - max(now, self.since)) / self.iteration
        self.first = self.done
        self.since = max(now, self.since)
        self.iteration = iteration
        self.ends = self.since + max(1, ceil(part * iteration))


class FakeBackend:
    """*worth* of a candidate after so many iterations. Where *shared*, a trial is slowed by those that are on
    its GPU in truth; else by the share it has, as in the simulated world. *leaving*: how long an end takes.
    *kept* outlives the backend, as a folder would."""

    def __init__(
        self,
        clock: Clock,
        runtime: Callable[[int], Runtime],
        worth: Callable[[int, int], float | None],
        gpus: int = 4,
        starting: Time = 0,
        moving: Time = 0,
        leaving: Time = 0,
        checkpoints: int = 1,
        shared: bool = False,
        kept: set[Checkpoint] | None = None,
    ) -> None:
        self.clock = clock
        self._runtime = runtime
        self._worth = worth
        self._starting = starting
        self._moving = moving
        self._leaving = leaving
        self._checkpoints = checkpoints
        self._shared = shared
        self.kept: set[Checkpoint] = set() if kept is None else kept
        self.gpus = tuple(range(gpus))
        self.started: list[Work] = []
        self.trained: list[tuple[int, int]] = []  # candidate and iterations, of all that were ever done
        self.failing: Callable[[int, int], str] = lambda candidate, iterations: ""
        self.metrics: Callable[[int, int], dict[str, float]] = lambda candidate, iterations: {}
        self.closed = False
        self.orders: list[tuple[str, int]] = []
        self._running: dict[int, Training] = {}
        self._left: set[int] = set()
        self._heap: list[tuple[Time, int, Callable[[], None]]] = []
        self._count = 0
        self._news: list[News] = [GpusSeen(self.gpus)]

    def start(self, work: Work) -> None:
        assert not self.closed
        assert work.trial not in self._running
        assert set(work.place.gpus) <= set(self.gpus)
        assert self._fits(work), f"{work} does not fit"
        assert work.start is None or work.start in self.kept, f"{work.start} was never kept"
        self.started.append(work)
        self.orders.append(("start", work.trial))
        cost = self._moving if work.trial in self._left else self._starting
        self._left.discard(work.trial)
        done = work.start.iterations if work.start else 0
        training = Training(work, done, self.clock.now + cost, self._pace(work))
        self._running[work.trial] = training
        self._later(training.ends, lambda: self._iterated(training))
        self._change_pace_of_others(work)

    def stop(self, trial: int, run: int) -> None:
        self.orders.append(("stop", trial))
        training = self._alive(trial, run)
        if training is None:
            return
        if self.clock.now <= training.begun:  # between two iterations
            training.ends = FOREVER
            self._later(training.begun + self._leaving, lambda: self._end(training, "left", keep=True))
        else:
            training.leaves = training.ends

    def drop(self, trial: int, run: int) -> None:
        self.orders.append(("drop", trial))
        training = self._alive(trial, run)
        if training is not None:
            training.ends = FOREVER
            self._later(self.clock.now + self._leaving, lambda: self._end(training, "left"))

    def hear(self, seconds: float) -> list[News]:
        until = self.clock.now + round(seconds * SECOND)
        while not self._news and self._heap and self._heap[0][0] <= until:
            self.clock.now = max(self.clock.now, self._heap[0][0])
            self._happen()
        self._happen()
        self.clock.now = self.clock.now if self._news else until
        news = self._news
        self._news = []
        return news

    def close(self) -> None:
        self.closed = True
        self._running.clear()

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        self._later(round(seconds * SECOND), what)

    def change(self, gpus: Iterable[int]) -> None:
        self.gpus = tuple(gpus)
        for training in list(self._running.values()):
            if not set(training.work.place.gpus) <= set(self.gpus):
                self._end(training, "lost")
        self._news.append(GpusSeen(self.gpus))

    def kill(self, trial: int) -> None:
        if trial in self._running:
            self._end(self._running[trial], "lost")

    def _later(self, at: Time, what: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._heap, (at, self._count, what))

    def _happen(self) -> None:
        while self._heap and self._heap[0][0] <= self.clock.now:
            heappop(self._heap)[2]()

    def _alive(self, trial: int, run: int) -> Training | None:
        training = self._running.get(trial)
        return training if training is not None and training.work.run == run else None

    def _fits(self, work: Work) -> bool:
        return all(
            sum(training.work.place.share for training in self._on(gpu)) + work.place.share <= 1
            for gpu in work.place.gpus
        )

    def _on(self, gpu: int) -> list[Training]:
        return [training for training in self._running.values() if gpu in training.work.place.gpus]

    def _pace(self, work: Work) -> float:
        runtime = self._runtime(work.candidate)
        place = work.place
        if not self._shared or place.parts == 1:
            return runtime.at(place.width)
        others = sum(training.work.trial != work.trial for training in self._on(place.gpus[0]))
        return runtime.iteration * runtime.packing**others

    def _change_pace_of_others(self, work: Work) -> None:
        """Those beside it go on at another pace."""
        if self._shared and work.place.parts > 1:
            for training in self._on(work.place.gpus[0]):
                if training.ends < FOREVER and training.work.trial != work.trial:
                    training.slowed(self.clock.now, self._pace(training.work))
                    self._later(training.ends, lambda training=training: self._iterated(training))  # type: ignore[misc]

    def _iterated(self, training: Training) -> None:
        work = training.work
        if self._running.get(work.trial) is not training or training.ends != self.clock.now:
            return
        took = training.ends - training.begun
        error = self.failing(work.candidate, training.done + 1)
        if error:
            self._end(training, "failed", error=error)
            return
        training.done += 1
        self.trained.append((work.candidate, training.done))
        value = self._worth(work.candidate, training.done)
        sharers = float(work.place.parts)
        known_sharers = None if self._shared else sharers
        metrics = self.metrics(work.candidate, training.done)
        iterated = Iterated(work.trial, work.run, training.done, took, value, known_sharers, metrics)
        self._news.append(iterated)
        if training.done % self._checkpoints == 0:
            self.kept.add(Checkpoint(work.candidate, training.done))
        self._on_with(training)

    def _on_with(self, training: Training) -> None:
        ending: Ending | None = None
        if training.done >= training.work.total:
            ending = "finished"
        elif training.leaves <= self.clock.now:
            ending = "left"
        if ending is None:
            self._again(training)
        elif self._leaving and ending == "left":
            training.ends = FOREVER
            self._later(self.clock.now + self._leaving, lambda: self._end(training, "left", keep=True))
        else:
            self._end(training, ending, keep=True)

    def _again(self, training: Training) -> None:
        if self._shared:
            training.first = training.done
            training.since = self.clock.now
            training.iteration = self._pace(training.work)
        training.begun = self.clock.now
        training.ends = training.end_of_next()
        self._later(training.ends, lambda: self._iterated(training))

    def _end(self, training: Training, ending: Ending, keep: bool = False, error: str = "") -> None:
        work = training.work
        if self._running.get(work.trial) is not training:
            return
        del self._running[work.trial]
        self._change_pace_of_others(work)
        if keep and training.done:
            self.kept.add(Checkpoint(work.candidate, training.done))
        if ending == "left":
            self._left.add(work.trial)
        mine = [checkpoint.iterations for checkpoint in self.kept if checkpoint.candidate == work.candidate]
        newest = max((checkpoint for checkpoint in mine if checkpoint <= training.done), default=0)
        value = self._worth(work.candidate, training.done) if ending == "finished" else None
        self._news.append(RunEnded(work.trial, work.run, ending, newest, value, error))


def play(live: LiveTuning, clock: Clock, steps: int = 5_000, until: Callable[[], bool] | None = None) -> int:
    """To its end, or *until*; how many steps it took."""
    for count in range(steps):
        if live.over or (until is not None and until()):
            return count
        live.listen(clock.now)
        live.step(clock.now)
        live.state.validate()
    raise AssertionError(f"it did not end within {steps} steps: {live.state.open}")
