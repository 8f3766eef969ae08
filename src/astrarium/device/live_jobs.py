"""A live job: its iterations one after the other, and what it is charged for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from astrarium.core.errors import AstrariumError
from astrarium.device.charges import Charges
from astrarium.device.events import IterationFailed, IterationFinished, JobWithdrawn
from astrarium.device.ground import Excess, Needs, Reading, Turn
from astrarium.device.jobs import Job

if TYPE_CHECKING:
    from astrarium.device.live import SharedGpu


class Ended(AstrariumError):
    """The job is over: it was refused, withdrawn, or has failed."""


class OutOfTurn(AstrariumError):
    """A job's iterations do not follow one another in its one thread."""


class MemoryWarning(UserWarning):
    """A job keeps more memory, or takes more of its lane, than was known of it."""


class LiveJob:
    """Used by one thread: `with job.iteration():`, or `begin` and `end` where there is no block."""

    def __init__(
        self, gpu: SharedGpu, id_: int, name: str, about: tuple[int, int, float], owned: int = 0
    ) -> None:
        """*about*: its iterations, priority and demand."""
        self._gpu, self.id, self.name = gpu, id_, name
        self._about, self._owned = about, owned
        self._charges = Charges(id_)
        self._arrived = False
        self._turn: Turn | None = None
        self._alone: AbstractContextManager[Callable[[], Reading]] | None = None
        self._block = _Iteration(self)

    def iteration(self) -> AbstractContextManager[None]:
        return self._block

    @property
    def under_way(self) -> bool:
        return self._turn is not None or self._alone is not None

    def begin(self) -> None:
        """Waits for the job's turn."""
        if self.under_way:
            raise OutOfTurn(f"job {self.name}: an iteration begins inside another one")
        if not self._arrived:
            alone = self._gpu.alone()
            self._reading = alone.__enter__()
            self._alone = alone
            return
        turn = self._gpu.await_turn(self.id)
        try:
            self._gpu.ground.begin(turn)
        except BaseException as error:
            self._gpu.turn_over(IterationFailed(self.id, turn.run, told(error)))
            raise
        self._turn, self._started = turn, self._gpu.now()

    def end(self, error: BaseException | None = None, survives: bool = False) -> None:
        """A job ends with an error in its iteration, unless it *survives*: somebody may still handle it."""
        if self._turn is not None:
            self._end_turn(error, survives)
        elif self._alone is not None:
            self._end_alone(error)

    def life(self, needs: Needs | None) -> Iterator[LiveJob]:
        """An iteration that is still under way at the end of the block ends with it."""
        if needs is not None:
            self._arrive(needs)
        else:
            self._gpu.estimate(self.id, self._owned)
        try:
            yield self
        except BaseException as error:
            self.end(error)
            raise
        self.end()

    def leave(self, error: str = "") -> None:
        """Also a job that ended while it was measured has its row in the books."""
        if not self._arrived:
            self._arrive(self._charges.so_far())
        self._gpu.hear(JobWithdrawn(self.id, error))

    def _end_turn(self, error: BaseException | None, survives: bool) -> None:
        turn, self._turn = self._turn, None
        assert turn is not None
        try:
            excess = self._gpu.ground.end(turn, error)
        except BaseException as failure:
            self._gpu.turn_over(IterationFailed(self.id, turn.run, told(failure)))
            raise
        if error is not None and not survives:
            self._gpu.turn_over(IterationFailed(self.id, turn.run, told(error)))
        elif excess is None:
            self._gpu.turn_over(IterationFinished(self.id, turn.run, self._started))
        else:
            self._exceeded(turn, excess)

    def _exceeded(self, turn: Turn, excess: Excess) -> None:
        """Charged in the same step, before anybody else can be given the memory."""
        changed = self._charges.exceeded(excess)
        self._gpu.turn_over(IterationFinished(self.id, turn.run, self._started), *changed)
        if warning := self._charges.warning(turn, excess):
            warnings.warn(f"job {self.name}: {warning}", MemoryWarning, stacklevel=2)
        if changed and self._gpu.failed(self.id):
            self._gpu.ground.renew(turn.lane)
            raise Ended(self._gpu.ended(self.id))

    def _end_alone(self, error: BaseException | None) -> None:
        alone, self._alone = self._alone, None
        assert alone is not None
        if error is not None:
            alone.__exit__(type(error), error, error.__traceback__)
            return
        alone.__exit__(None, None, None)
        found = self._reading()
        needs = self._charges.measured(self._gpu.estimate(self.id, self._owned, found.after), found)
        if needs is not None:
            self._arrive(needs)

    def _arrive(self, needs: Needs) -> None:
        self._arrived = True
        self._charges.known(needs)
        self._gpu.arrive(Job(self.id, self.name, *needs, *self._about), self._charges.done)


class _Iteration:
    """A block of a job's turn. Written out, since it is entered at every iteration."""

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
