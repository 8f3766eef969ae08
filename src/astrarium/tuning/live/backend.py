"""A trial backend really runs trials, as the live loop sees it: orders go out, news comes back.

A backend knows no policy and no search. It trains what it is ordered to, where it is ordered to, keeps
checkpoints, and reports once what became of each run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from astrarium.core.quantities import Time
from astrarium.tuning.runtime import Place


class Checkpoint(NamedTuple):
    """A checkpoint holds what a candidate had learnt after so many iterations in all."""

    candidate: int
    iterations: int


class Work(msgspec.Struct, frozen=True):
    """The backend is to train a candidate at a place, from a checkpoint (None: from nothing) until it has
    *total* iterations. A trial that goes on is a new run; news of the run carries the number *run*. *best* is
    the best value that the candidate has reported until then."""

    trial: int
    run: int
    candidate: int
    values: Mapping[str, Any]
    place: Place
    total: int
    start: Checkpoint | None = None
    best: float | None = None


class Iterated(msgspec.Struct, frozen=True, tag=True):
    """An iteration has ended, which took so long; the candidate has *iterations* in all, and its value is
    *value*; *metrics* are other numbers that it has reported. *sharers* is the number of trials on its GPU,
    this one included, where the backend knows it; else the live loop counts the trials that run there."""

    trial: int
    run: int
    iterations: int
    took: Time
    value: float | None = None
    sharers: float | None = None
    metrics: Mapping[str, float] = {}


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
