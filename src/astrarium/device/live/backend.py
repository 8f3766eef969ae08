"""What live lanes stand on, as the device level sees it. An engine provides it; tests provide another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from astrarium.core.units import Time


class Needs(NamedTuple):
    """Of a job; memory in bytes."""

    persistent: int
    ephemeral: int
    iteration: Time


class Reading(NamedTuple):
    """What the whole device had allocated before an iteration, after it and at most in between."""

    before: int
    after: int
    peak: int
    took: Time


class Excess(NamedTuple):
    """What a turn has shown of a job's memory beyond what was known; bytes.

    `held` outlives its iterations, in `blocks` blocks, made at `where` as far as that was recorded.
    `lane` is what its lane has taken of the device for an iteration. `leaks`: more is held each time.
    """

    held: int
    lane: int
    blocks: int = 0
    where: tuple[str, ...] = ()
    leaks: bool = False


class Turn(NamedTuple):
    """Who runs where; whether other jobs have turns in that lane too."""

    job: int
    run: int
    lane: int
    size: int  # of the lane, in bytes
    shared: bool


class LaneBackend(Protocol):
    """Lanes are numbered; a turn opens the one it needs. All but `close` is called by the job's thread."""

    @property
    def capacity(self) -> int: ...

    def job_thread(self) -> AbstractContextManager[object]:
        """Inside, the calling thread is a job's."""

    def begin(self, turn: Turn) -> None:
        """What the thread launches from now on runs in that lane."""

    def end(self, turn: Turn, error: BaseException | None) -> Excess | None:
        """No more than that. None: nothing new was seen. A lane in which a job failed is as good as new."""

    def took(self) -> Time | None:
        """The GPU time that the calling thread's job is charged for after its turn: that of an earlier turn,
        where turns end before their work. None: as long as the turn was."""

    def measured(self) -> AbstractContextManager[Callable[[], Reading]]:
        """What is launched inside runs alone; the call tells afterwards what it took."""

    def allocated(self) -> int:
        """Of the whole device, now."""

    def keep(self, value: object) -> None:
        """In a turn: what is in *value* will be read after it, in the thread's own time."""

    def renew(self, lane: int) -> None:
        """Nobody runs in it: what it has of the device goes back, and the next turn makes it anew."""

    def close(self, lane: int) -> None: ...
