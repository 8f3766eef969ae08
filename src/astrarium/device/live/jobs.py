"""A shared GPU keeps account of its jobs: the memory that each is charged, and the turns they wait for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from queue import SimpleQueue

from astrarium.core.errors import AstrariumError, InputError
from astrarium.device.contract import NeedsChanged
from astrarium.device.live.backend import Excess, Needs, Reading, Turn

MEASURED = 3  # iterations of a job that does not say what it needs; the first makes what stays
KEEP = "keep numbers (loss.item()) or copies off the GPU (output.detach().cpu()) instead"


class Charges:
    """The charges of a job are the memory measured over its first iterations, and what turns show later."""

    def __init__(self, job: int) -> None:
        self._job = job
        self._read: list[Needs] = []
        self._known: Needs | None = None
        self._told = (0, 0)  # persistent and ephemeral bytes, as the books have them
        self._warned: set[bool] = set()

    @property
    def done(self) -> int:
        """Return the number of iterations that were measured."""
        return len(self._read)

    def measured(self, persistent: int, reading: Reading, iterations: int) -> Needs | None:
        """Take a reading; return what a job of so many *iterations* needs, once enough was read."""
        self._read.append(Needs(persistent, max(0, reading.peak - reading.after), reading.took))
        return self.so_far() if self.done >= min(MEASURED, iterations) else None

    def so_far(self) -> Needs:
        """Return the needs as far as they were measured: persistent memory as read last, since others may
        have built and freed theirs meanwhile; the largest ephemeral memory; the shortest time, since what is
        slow at first gets faster."""
        read = self._read[1:] or self._read or [Needs(0, 0, 1)]
        persistent, ephemeral, took = zip(*read, strict=True)
        return Needs(persistent[-1], max(ephemeral), min(took))

    def known(self, needs: Needs) -> None:
        self._known = needs
        self._told = (needs.persistent, needs.ephemeral)

    def lowered(self, by: int) -> NeedsChanged:
        """Charge the job less: some of what was taken for its own has turned out to be another's."""
        assert self._known is not None
        self._known = self._known._replace(persistent=self._known.persistent - by)
        self._told = (self._told[0] - by, self._told[1])
        return NeedsChanged(self._job, *self._told)

    def exceeded(self, turn: Turn, excess: Excess) -> list[NeedsChanged]:
        """Return what the books have to hear of an excess, if anything. A lane that is not larger than it
        should be says nothing of this job: another one needs it."""
        assert self._known is not None
        lane = excess.lane if excess.lane > turn.size else 0
        needed = (self._known.persistent + excess.held, max(self._known.ephemeral, lane))
        if needed == self._told:
            return []
        self._told = needed
        return [NeedsChanged(self._job, *needed)]

    def warning(self, turn: Turn, excess: Excess) -> str:
        """Return a warning, once for each kind of trouble; else nothing."""
        if excess.leaks in self._warned or not (excess.leaks or excess.lane > turn.size):
            return ""
        self._warned.add(excess.leaks)
        if excess.leaks:
            return _leak(excess)
        told = f"an iteration took {excess.lane} bytes, and its lane had {turn.size}"
        return f"{told}: the job is charged the more"


def _leak(excess: Excess) -> str:
    where = f", made at {'; '.join(excess.where)}" if excess.where else ""
    return (
        f"{excess.held} bytes more than at first outlive its iterations, in {excess.blocks} blocks{where}; "
        f"they are charged to the job: {KEEP}"
    )


class JobEnded(AstrariumError):
    """The job is over: it was refused or withdrawn, or has failed."""


class OutOfTurn(AstrariumError):
    """A job's iterations do not follow one another in its one thread."""


class MemoryWarning(UserWarning):
    """A job keeps more memory, or takes more of its lane, than was known of it."""


def told(error: BaseException) -> str:
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


class PersistentEstimates:
    """The estimates say how much persistent memory a live job has, by what was read while it was measured."""

    def __init__(self) -> None:
        self._guessed: dict[int, int] = {}  # of jobs that are not in the books yet
        self._surplus: dict[int, int] = {}  # beyond what a measured job was known to own, in order of time

    def guess(self, job: int, owned: int, allocated: int, booked: int) -> int:
        """Estimate a job's persistent memory. *booked* is that of all jobs in the books."""
        others = booked + sum(size for other, size in self._guessed.items() if other != job)
        self._guessed[job] = max(owned, allocated - others)
        self._surplus[job] = self._guessed[job] - owned
        return self._guessed[job]

    def booked(self, job: int, measured: bool) -> None:
        self._guessed.pop(job, None)
        if not measured:
            self._surplus.pop(job, None)

    def left(self, job: int) -> None:
        self._guessed.pop(job, None)
        self._surplus.pop(job, None)

    def mistaken(self, owned: int, allocated: int, persistent: Mapping[int, int]) -> dict[int, int]:
        """Return by how much jobs in the books are charged too much, when a job comes that owned this much
        before.

        *persistent* is the memory of jobs in the books. Those that said what they need are not counted: more
        than they have may be booked for them. What iterations have allocated just now makes it less, too.
        """
        measured = {job: size for job, size in persistent.items() if job in self._surplus}
        left = min(owned, sum(measured.values()) + sum(self._guessed.values()) + owned - allocated)
        cuts: dict[int, int] = {}
        for job in reversed(list(measured)):  # the last one was most likely measured meanwhile
            cut = min(max(0, left), self._surplus[job])
            if cut:
                cuts[job] = cut
                self._surplus[job] -= cut
                left -= cut
        return cuts


class TurnGrants:
    """Jobs wait here until they are granted a turn, or told why they will have none. While grants are
    *paused*, since a job is measured, turns are held back. All but the waiting itself is called with the
    driver's lock held."""

    def __init__(self) -> None:
        self.paused = False
        self.under_way: dict[int, Turn] = {}  # by job
        self._waiting: dict[int, SimpleQueue[Turn | str]] = {}  # by job
        self._held: list[Turn] = []

    def wait(self, job: int) -> SimpleQueue[Turn | str]:
        answer = self._waiting[job] = SimpleQueue()
        return answer

    @property
    def waiting(self) -> list[int]:
        return list(self._waiting)

    def grant(self, turn: Turn) -> None:
        if self.paused:
            self._held.append(turn)
        else:
            self._start(turn)

    def resume(self) -> None:
        self.paused = False
        held = self._held
        self._held = []
        for turn in held:
            self._start(turn)

    def refuse(self, job: int, reason: str) -> None:
        self._waiting.pop(job).put(reason)

    def refuse_all(self, reason: str) -> None:
        self._held.clear()
        for job in self.waiting:
            self.refuse(job, reason)

    def over(self, job: int) -> None:
        self.under_way.pop(job, None)

    def abandon(self, job: int) -> Turn | None:
        """Stop waiting; return the turn that the job had, or was to have."""
        self._waiting.pop(job, None)
        held = next((turn for turn in self._held if turn.job == job), None)
        self._held = [turn for turn in self._held if turn.job != job]
        return self.under_way.pop(job, held)

    def _start(self, turn: Turn) -> None:
        self.under_way[turn.job] = turn
        self._waiting.pop(turn.job).put(turn)


# What a user says of a job is checked before any other job is affected.


UNKNOWN = 1 << 40  # iterations of a job that does not say how many

About = tuple[int, int, float]  # iterations, priority, demand


def checked(name: str, needs: Needs | None, iterations: int | None, priority: int, demand: float) -> About:
    source = f"job {name}"
    if iterations is not None and not _whole(iterations, 1):
        raise InputError("iterations", iterations, "at least 1, or None if it is not known", source)
    if not _whole(priority):
        raise InputError("priority", priority, "a whole number; the higher, the more important", source)
    if isinstance(demand, bool) or not isinstance(demand, int | float) or not 0 < demand <= 1:
        raise InputError("demand", demand, "a share of the GPU: above 0, at most 1", source)
    if needs is not None:
        _check_needs(needs, source)
    return UNKNOWN if iterations is None else iterations, priority, float(demand)


def _check_needs(needs: Needs, source: str) -> None:
    if not isinstance(needs, tuple) or len(needs) != len(Needs._fields):
        raise InputError("needs", needs, "Needs(persistent, ephemeral, iteration), or None", source)
    for field, value in zip(Needs._fields, needs, strict=True):
        unit = "nanoseconds" if field == "iteration" else "bytes"
        least = 1 if field == "iteration" else 0
        if not _whole(value, least):
            raise InputError(f"needs.{field}", value, f"a whole number of {unit}, at least {least}", source)


def _whole(value: object, least: float = -math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
