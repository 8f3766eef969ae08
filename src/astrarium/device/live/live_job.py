"""A live job has its turns one after another, in the thread that made it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from threading import current_thread, get_ident, local
from types import TracebackType
from typing import TypeVar

from astrarium.core.quantities import Time
from astrarium.device import contract
from astrarium.device.contract import Event, Job
from astrarium.device.live.backend import Excess, Needs, Reading, Turn
from astrarium.device.live.charges import Charges
from astrarium.device.live.driver import LaneDriver
from astrarium.device.live.errors import JobEnded, MemoryWarning, OutOfTurn, described
from astrarium.device.live.job_options import JobOptions

Kept = TypeVar("Kept")


class JobOfThread(local):
    """A thread's job on a shared GPU, while the thread is in an iteration of it."""

    job: LiveJob | None = None


class LiveJob:
    """A live job is used by the thread that made it: `with job.iteration():`, or `begin` and `end` where
    there is no block. *owned* bytes on the GPU are known to be its own."""

    def __init__(
        self,
        driver: LaneDriver,
        of_thread: JobOfThread,
        id_: int,
        name: str,
        options: JobOptions,
        owned: int,
    ) -> None:
        self._driver = driver
        self._of_thread = of_thread
        self.id = id_
        self.name = name
        self._options = options
        self._owned = owned
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
            self._driver.backend.keep(value)
        return value

    def begin(self) -> None:
        """Wait for the job's turn."""
        self._check_thread()
        if self._arrived:
            self._begin_turn()
        else:
            alone = self._driver.alone()
            self._reading = alone.__enter__()
            self._alone = alone
        self._of_thread.job = self

    def end(self, error: BaseException | None = None, survives: bool = False) -> None:
        """End an iteration. An error in it ends the job, unless it *survives*: the loop may handle it."""
        if not self.under_way:
            return
        self._check_owner()
        self._of_thread.job = None
        if self._turn is not None:
            self._end_turn(self._turn, error, survives)
        else:
            self._end_alone(error)

    def life(self, needs: Needs | None) -> Iterator[LiveJob]:
        """Run the job's block. An iteration that is still under way at the end of the block ends with it."""
        self._driver.owns(self.id, self._owned)
        if needs is not None:
            self._arrive(needs)
        try:
            yield self
        except BaseException as error:
            self.end(error)
            raise
        self.end()

    def leave(self, error: str = "") -> None:
        """Remove the job. A job that ended while it was measured has its row in the ledger too, with its own
        error: in one step, since the policy might refuse it."""
        if not self._arrived:
            self._arrive(self._charges.so_far(), contract.JobWithdrawn(self.id, error))
        self._driver.leave(self.id, error)

    def _begin_turn(self) -> None:
        """Begin a turn. If that is interrupted anywhere, the turn is given back."""
        try:
            turn = self._turn = self._driver.await_turn(self.id)
            self._driver.backend.begin(turn)
        except JobEnded:
            raise
        except BaseException as error:
            self._turn = None
            self._driver.abandon(self.id, described(error))
            raise
        self._started = self._driver.now()

    def _end_turn(self, turn: Turn, error: BaseException | None, survives: bool) -> None:
        self._turn = None
        try:
            excess = self._driver.backend.end(turn, error)
        except BaseException as failure:
            self._driver.turn_over(self.id, contract.IterationFailed(self.id, turn.run, described(failure)))
            raise
        if error is not None and not survives:
            self._driver.turn_over(self.id, contract.IterationFailed(self.id, turn.run, described(error)))
        elif excess is None:
            self._driver.turn_over(self.id, self._finished(turn))
        else:
            self._exceeded(turn, excess)

    def _finished(self, turn: Turn) -> contract.IterationFinished:
        took = self._driver.backend.took()
        started = self._started if took is None else self._driver.now() - took
        return contract.IterationFinished(self.id, turn.run, started)

    def _exceeded(self, turn: Turn, excess: Excess) -> None:
        """Charge the excess in the same step, before another job can be given the memory."""
        changed = self._charges.exceeded(turn, excess)
        self._driver.turn_over(self.id, self._finished(turn), *changed)
        if warning := self._charges.warning(turn, excess):
            warnings.warn(f"job {self.name}: {warning}", MemoryWarning, stacklevel=2)
        if changed and self._driver.failed(self.id):
            self._driver.backend.renew(turn.lane)
            raise JobEnded(self._driver.ended(self.id))

    def _end_alone(self, error: BaseException | None) -> None:
        alone = self._alone
        self._alone = None
        assert alone is not None
        if error is not None:
            alone.__exit__(type(error), error, error.__traceback__)
            return
        alone.__exit__(None, None, None)
        reading = self._reading()
        persistent = self._driver.estimate(self.id, self._owned, reading.after)
        needs = self._charges.measured(persistent, reading, self._options.iterations)
        if needs is not None:
            self._arrive(needs)

    def _arrive(self, needs: Needs, *events: Event) -> None:
        self._arrived = True
        self._charges.known(needs)
        job = Job(
            self.id,
            self.name,
            needs.persistent,
            needs.ephemeral,
            needs.iteration,
            self._options.iterations,
            self._options.priority,
            self._options.demand,
        )
        self._driver.arrive(job, self._charges, *events)

    def _check_thread(self) -> None:
        """Refuse other threads, and iterations inside others: threads would wait for one another for ever."""
        self._check_owner()
        inside = self._of_thread.job
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
