"""A live job runs its iterations one after the other, and is charged for the memory that they need."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from threading import current_thread, get_ident, local
from types import TracebackType
from typing import Protocol, TypeVar

from astrarium.core.errors import AstrariumError
from astrarium.core.units import Time
from astrarium.device import contract
from astrarium.device.contract import Event, Job, NeedsChanged
from astrarium.device.live.backend import Excess, LaneBackend, Needs, Reading, Turn

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
        self._known, self._told = needs, (needs.persistent, needs.ephemeral)

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


Kept = TypeVar("Kept")


class JobEnded(AstrariumError):
    """The job is over: it was refused or withdrawn, or has failed."""


class OutOfTurn(AstrariumError):
    """A job's iterations do not follow one another in its one thread."""


class MemoryWarning(UserWarning):
    """A job keeps more memory, or takes more of its lane, than was known of it."""


class Host(Protocol):
    """A host is the GPU that a live job shares, as far as the job needs it."""

    backend: LaneBackend
    inside: local

    def now(self) -> Time: ...
    def arrive(self, job: Job, charges: Charges, *events: Event) -> None: ...
    def estimate(self, job: int, owned: int, allocated: int) -> int: ...
    def owns(self, job: int, owned: int) -> None: ...
    def await_turn(self, job: int) -> Turn: ...
    def turn_over(self, job: int, *events: Event) -> None: ...
    def abandon(self, job: int, error: str) -> None: ...
    def leave(self, job: int, error: str) -> None: ...
    def failed(self, job: int) -> bool: ...
    def ended(self, job: int) -> str: ...
    def alone(self) -> AbstractContextManager[Callable[[], Reading]]: ...


class LiveJob:
    """A live job is used by the thread that made it: `with job.iteration():`, or `begin` and `end` where
    there is no block. *about*: its iterations, priority and demand."""

    def __init__(self, gpu: Host, id_: int, name: str, about: tuple[int, int, float], owned: int = 0) -> None:
        self._gpu, self.id, self.name = gpu, id_, name
        self._about, self._owned = about, owned
        self._thread = get_ident()
        self._charges = Charges(id_)
        self._arrived = False
        self._turn: Turn | None = None
        self._started: Time = 0
        self._alone: AbstractContextManager[Callable[[], Reading]] | None = None
        self._block = _Iteration(self)

    def iteration(self) -> AbstractContextManager[None]:
        return self._block

    @property
    def under_way(self) -> bool:
        return self._turn is not None or self._alone is not None

    def keep(self, value: Kept) -> Kept:
        """Keep, in an iteration, what is read only afterwards, such as the output of a model."""
        if self._turn is not None:
            self._gpu.backend.keep(value)
        return value

    def begin(self) -> None:
        """Wait for the job's turn."""
        self._check_thread()
        if self._arrived:
            self._begin_turn()
        else:
            alone = self._gpu.alone()
            self._reading = alone.__enter__()
            self._alone = alone
        self._gpu.inside.job = self

    def end(self, error: BaseException | None = None, survives: bool = False) -> None:
        """End an iteration. An error in it ends the job, unless it *survives*: the loop may handle it."""
        if not self.under_way:
            return
        self._check_owner()
        self._gpu.inside.job = None
        if self._turn is not None:
            self._end_turn(self._turn, error, survives)
        else:
            self._end_alone(error)

    def life(self, needs: Needs | None) -> Iterator[LiveJob]:
        """Run the job's block. An iteration that is still under way at the end of the block ends with it."""
        self._gpu.owns(self.id, self._owned)
        if needs is not None:
            self._arrive(needs)
        try:
            yield self
        except BaseException as error:
            self.end(error)
            raise
        self.end()

    def leave(self, error: str = "") -> None:
        """Remove the job. A job that ended while it was measured has its row in the books too, with its own
        error: in one step, since the policy might refuse it."""
        if not self._arrived:
            self._arrive(self._charges.so_far(), contract.JobWithdrawn(self.id, error))
        self._gpu.leave(self.id, error)

    def _begin_turn(self) -> None:
        """Begin a turn. If that is interrupted anywhere, the turn is given back."""
        try:
            turn = self._turn = self._gpu.await_turn(self.id)
            self._gpu.backend.begin(turn)
        except JobEnded:
            raise
        except BaseException as error:
            self._turn = None
            self._gpu.abandon(self.id, told(error))
            raise
        self._started = self._gpu.now()

    def _end_turn(self, turn: Turn, error: BaseException | None, survives: bool) -> None:
        self._turn = None
        try:
            excess = self._gpu.backend.end(turn, error)
        except BaseException as failure:
            self._gpu.turn_over(self.id, contract.IterationFailed(self.id, turn.run, told(failure)))
            raise
        if error is not None and not survives:
            self._gpu.turn_over(self.id, contract.IterationFailed(self.id, turn.run, told(error)))
        elif excess is None:
            self._gpu.turn_over(self.id, self._finished(turn))
        else:
            self._exceeded(turn, excess)

    def _finished(self, turn: Turn) -> contract.IterationFinished:
        took = self._gpu.backend.took()
        started = self._started if took is None else self._gpu.now() - took
        return contract.IterationFinished(self.id, turn.run, started)

    def _exceeded(self, turn: Turn, excess: Excess) -> None:
        """Charge the excess in the same step, before another job can be given the memory."""
        changed = self._charges.exceeded(turn, excess)
        self._gpu.turn_over(self.id, self._finished(turn), *changed)
        if warning := self._charges.warning(turn, excess):
            warnings.warn(f"job {self.name}: {warning}", MemoryWarning, stacklevel=2)
        if changed and self._gpu.failed(self.id):
            self._gpu.backend.renew(turn.lane)
            raise JobEnded(self._gpu.ended(self.id))

    def _end_alone(self, error: BaseException | None) -> None:
        alone, self._alone = self._alone, None
        assert alone is not None
        if error is not None:
            alone.__exit__(type(error), error, error.__traceback__)
            return
        alone.__exit__(None, None, None)
        found = self._reading()
        persistent = self._gpu.estimate(self.id, self._owned, found.after)
        needs = self._charges.measured(persistent, found, self._about[0])
        if needs is not None:
            self._arrive(needs)

    def _arrive(self, needs: Needs, *events: Event) -> None:
        self._arrived = True
        self._charges.known(needs)
        self._gpu.arrive(Job(self.id, self.name, *needs, *self._about), self._charges, *events)

    def _check_thread(self) -> None:
        """Refuse other threads, and iterations inside others: threads would wait for one another for ever."""
        self._check_owner()
        inside: LiveJob | None = getattr(self._gpu.inside, "job", None)
        if inside is self:
            raise OutOfTurn(f"job {self.name}: an iteration begins inside another one")
        if inside is not None:
            raise OutOfTurn(
                f"job {self.name}: this thread is in an iteration of job {inside.name}; where one loop has "
                "several models, make it one job, and wrap its iterations in `with job.iteration():`"
            )

    def _check_owner(self) -> None:
        if get_ident() != self._thread:
            raise OutOfTurn(
                f"job {self.name}: it is used by the thread {current_thread().name!r}, "
                "and belongs to the one that made it"
            )


class _Iteration:
    """An iteration is a block of a job's turn: a class and no generator, as that would be slower."""

    __slots__ = ("_job",)

    def __init__(self, job: LiveJob) -> None:
        self._job = job

    def __enter__(self) -> None:
        self._job.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._job.end(error)


def told(error: BaseException) -> str:
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
