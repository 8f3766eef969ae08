"""A lane backend provides the lanes of live jobs: those of PyTorch, or plain ones for tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from astrarium.core.quantities import Time


class Needs(NamedTuple):
    """A job needs so many bytes that stay and bytes for an iteration, and so long for an iteration."""

    persistent: int
    ephemeral: int
    iteration: Time


class Reading(NamedTuple):
    """A reading has the device's allocated bytes before an iteration, after it and at most in between."""

    before: int
    after: int
    peak: int
    took: Time


class Excess(NamedTuple):
    """An excess is what a turn has shown of a job's memory beyond what was known, in bytes.

    `held` outlives its iterations, in `blocks` blocks, made at `where` as far as that was recorded. `lane` is
    what its lane has taken of the device for an iteration. `leaks`: more is held each time.
    """

    held: int
    lane: int
    blocks: int = 0
    where: tuple[str, ...] = ()
    leaks: bool = False


class Turn(NamedTuple):
    """A turn lets a job run in a lane; *shared*: other jobs have turns in that lane too."""

    job: int
    run: int
    lane: int
    size: int  # of the lane, in bytes
    shared: bool


class LaneBackend(Protocol):
    """A lane backend has numbered lanes, opened by turns. The job's thread calls all but `close`."""

    @property
    def capacity(self) -> int: ...

    def job_thread(self) -> AbstractContextManager[object]:
        """Make the calling thread a job's thread inside the block."""

    def begin(self, turn: Turn) -> None:
        """Begin a turn: what the thread launches from now on runs in its lane."""

    def end(self, turn: Turn, error: BaseException | None) -> Excess | None:
        """End a turn, and return what it has shown; None where nothing new was seen. A lane in which a job
        failed is as good as new."""

    def took(self) -> Time | None:
        """Return the GPU time that the calling thread's job is charged for after its turn: that of an earlier
        turn, where turns end before their work. None: as long as the turn was."""

    def measured(self) -> AbstractContextManager[Callable[[], Reading]]:
        """Run what is launched inside alone; the call tells afterwards what it took."""

    def allocated(self) -> int:
        """Return the bytes that the whole device has allocated now."""

    def keep(self, value: object) -> None:
        """Keep the tensors in *value*, which the thread will read after its turn."""

    def renew(self, lane: int) -> None:
        """Give back what a lane, in which nobody runs, has of the device; the next turn makes it anew."""

    def close(self, lane: int) -> None: ...
