"""A trial backend really runs trials, as the live books see it: orders go out, news comes back.

A backend knows no policy and no search. It trains what it is told to, where it is told to, keeps checkpoints,
and says once what became of each run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.tuning.contract import Trial
from astrarium.tuning.runtime import Place

# A live tuning run remembers here what is not in the books, and writes its results down.


class LiveOptions(msgspec.Struct, frozen=True):
    """The options limit a live run. A trial whose runs are lost more than *retries* times without progress
    fails. News of progress reach the policy no more often than *progress*; in between, the books interpolate.
    A loop waits *patience* for news. A trial fails whose iteration takes more than *longest*, or whose run
    has not ended its first iteration so long after it was started."""

    retries: int = 2
    progress: Time = SECOND
    patience: Time = SECOND // 2
    longest: Time = FOREVER


class Reported(NamedTuple):
    iterations: int
    value: float | None


class Reports:
    """The reports keep the last value of each trial. `worth` is what a live session asks."""

    def __init__(self) -> None:
        self._last: dict[int, Reported] = {}  # by trial

    def hear(self, trial: int, iterations: int, value: float | None) -> None:
        """Take a report. One without a value replaces nothing, unless it tells of another iteration."""
        before = self._last.get(trial)
        if value is not None or before is None or before.iterations != iterations:
            self._last[trial] = Reported(iterations, value)

    def last(self, trial: int) -> Reported:
        return self._last.get(trial, Reported(0, None))

    def worth(self, trial: Trial) -> float | None:
        return self.last(trial.id).value


class EarlierResult(NamedTuple):
    """An earlier run had this result; *error* says why the trial failed, if it did."""

    value: float | None
    error: str = ""


class Journal:
    """A journal keeps results and checkpoints of this run and of those that it resumes. A candidate of
    another run counts as the same if its number and its values are the same. This one keeps nothing, for a
    run that nobody will resume."""

    def began(self, candidate: int, values: Mapping[str, Any]) -> None:
        """Note that a candidate trains. What is kept of another candidate of that number is of no use."""

    def finished(self, candidate: int, values: Mapping[str, Any], total: int, value: float | None) -> None:
        """Write a result down. When the call returns, a resumed run will find the result."""

    def failed(self, candidate: int, values: Mapping[str, Any], total: int, error: str) -> None:
        """Write a failure down. A resumed run does not try again: the search has gone on without it."""

    def result(self, candidate: int, values: Mapping[str, Any], total: int) -> EarlierResult | None:
        """Return a trial's result if it need not run again: the next trial finds its checkpoint."""
        return None

    def kept(self, candidate: int, values: Mapping[str, Any], below: int) -> int:
        """Return the iterations of the newest checkpoint with fewer than *below*; 0 where there is none."""
        return 0


class Checkpoint(NamedTuple):
    """A checkpoint holds what a candidate had learnt after so many iterations in all."""

    candidate: int
    iterations: int


class Work(msgspec.Struct, frozen=True):
    """The backend is to train a candidate at a place, from a checkpoint (None: from nothing) until it has
    *total* iterations. A trial that goes on is a new run; news of the run carries the number *run*."""

    trial: int
    run: int
    candidate: int
    values: Mapping[str, Any]
    place: Place
    total: int
    start: Checkpoint | None = None


class Iterated(msgspec.Struct, frozen=True, tag=True):
    """An iteration has ended, which took so long; the candidate has *iterations* in all, and its value is
    *value*. *sharers* is the number of trials on its GPU, this one included, where the backend knows it; else
    the live books count the trials that run there."""

    trial: int
    run: int
    iterations: int
    took: Time
    value: float | None = None
    sharers: float | None = None


# finished: the run has its total. left: it was told to stop. failed: by an error in the user's code.
# lost: its process or its GPU is gone. A run that finished or left has a checkpoint of its last iteration.
Ending: TypeAlias = Literal["finished", "left", "failed", "lost"]


class RunEnded(msgspec.Struct, frozen=True, tag=True):
    """A run has left its GPUs. *iterations* are those of its newest checkpoint, in all."""

    trial: int
    run: int
    ending: Ending
    iterations: int = 0
    value: float | None = None
    error: str = ""


class GpusSeen(msgspec.Struct, frozen=True, tag=True):
    """Exactly these GPUs are available now. Runs on others were reported as lost before."""

    gpus: tuple[int, ...]


News: TypeAlias = Iterated | RunEnded | GpusSeen


class TrialBackend(Protocol):
    """A trial backend trains runs on real or emulated GPUs. The first news is `GpusSeen`."""

    def start(self, work: Work) -> None: ...

    def stop(self, trial: int, run: int) -> None:
        """Stop a run at the end of its iteration, with a checkpoint. A run that has ended is ignored."""

    def drop(self, trial: int, run: int) -> None:
        """Stop an unwanted run at once. It ends as left, or as whatever it has ended meanwhile."""

    def hear(self, seconds: float) -> list[News]:
        """Return what happened since the last call; wait so long for the first news."""

    def close(self) -> None:
        """End all that was started."""
