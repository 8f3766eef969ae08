"""Where trials really run, as the live books see it: orders go out, news comes back.

A crew knows no policy and no search. It trains what it is told to, where it is told to, keeps checkpoints,
and says what became of each run: once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from astrarium.core.units import Time
from astrarium.tuning.runtime import Place


class Checkpoint(NamedTuple):
    """What a candidate had learnt after so many iterations in all."""

    candidate: int
    iterations: int


class Work(msgspec.Struct, frozen=True):
    """Train a candidate there, from a checkpoint (None: from nothing) until it has *total* iterations. A
    trial that goes on is a new run; *run* is the number that news of it bears."""

    trial: int
    run: int
    candidate: int
    values: Mapping[str, Any]
    place: Place
    total: int
    start: Checkpoint | None = None


class Iterated(msgspec.Struct, frozen=True, tag=True):
    """An iteration is over, which took so long; the candidate has *iterations* in all, and is worth
    *value*. *sharers*: how many trials were on its GPU, itself among them, where the crew knows; else the
    live books count those that run there."""

    trial: int
    run: int
    iterations: int
    took: Time
    value: float | None = None
    sharers: float | None = None


# finished: it has its total. left: it was told to stop. failed: by its own error, in the user's code.
# lost: its process or its GPU is gone. Whoever finished or left has a checkpoint of its last iteration.
Ending: TypeAlias = Literal["finished", "left", "failed", "lost"]


class RunEnded(msgspec.Struct, frozen=True, tag=True):
    """Nothing of the run is left on its GPUs. *iterations* are those of its newest checkpoint, in all."""

    trial: int
    run: int
    ending: Ending
    iterations: int = 0
    value: float | None = None
    error: str = ""


class GpusSeen(msgspec.Struct, frozen=True, tag=True):
    """All that are there from now on. Runs on others have ended as lost, which was said before."""

    gpus: tuple[int, ...]


News: TypeAlias = Iterated | RunEnded | GpusSeen


class Crew(Protocol):
    """The first news is `GpusSeen`."""

    def start(self, work: Work) -> None: ...

    def stop(self, trial: int, run: int) -> None:
        """At the end of its iteration, with a checkpoint. Orders for runs that have ended are ignored."""

    def drop(self, trial: int, run: int) -> None:
        """At once: nobody wants it any more. It ends as left, or as whatever it has ended meanwhile."""

    def hear(self, seconds: float) -> list[News]:
        """What happened since the last call; waits so long for the first of it."""

    def close(self) -> None:
        """End all that was started."""
