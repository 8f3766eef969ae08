"""A shared GPU is the real world of the device level: jobs are threads of one process, and take turns in
lanes.

    gpu = SharedGpu(policy, backend)
    with gpu.job("resnet50") as job:
        for images, labels in data:           # outside: others have the GPU meanwhile
            with job.iteration():             # waits for its turn
                step(images, labels)

The first iterations of a job that does not say what it needs run while nobody else does, and are measured. A
job that fails, or runs out of memory, ends by itself; the others go on. Memory that a turn shows beyond what
was known of a job is charged to it, and where there is none left, that job ends. An error of the policy, or
of the record, ends the sharing: it ends every job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from time import monotonic_ns

from astrarium.core.quantities import Time
from astrarium.core.trace import Step
from astrarium.device.ledger import JobRow
from astrarium.device.live.backend import LaneBackend, Needs
from astrarium.device.live.driver import LaneDriver
from astrarium.device.live.errors import JobEnded, MemoryWarning, OutOfTurn, described
from astrarium.device.live.job_options import checked_options
from astrarium.device.live.live_job import JobOfThread, LiveJob
from astrarium.device.policies import IterationPolicy

__all__ = ["JobEnded", "LiveJob", "MemoryWarning", "Needs", "OutOfTurn", "SharedGpu"]


class SharedGpu:
    """Jobs of this process share the GPU of *backend*, by an iteration policy."""

    def __init__(
        self,
        policy: IterationPolicy,
        backend: LaneBackend,
        clock: Callable[[], Time] = monotonic_ns,
        record: Callable[[Step], None] | None = None,
    ) -> None:
        self._driver = LaneDriver(policy, backend, clock, record)
        self._of_thread = JobOfThread()
        self._numbers = count()

    @property
    def backend(self) -> LaneBackend:
        return self._driver.backend

    @contextmanager
    def job(
        self,
        name: str,
        needs: Needs | None = None,
        iterations: int | None = None,
        priority: int = 0,
        demand: float = 1.0,
        owned: int = 0,
    ) -> Iterator[LiveJob]:
        """Make a job of the block, in the thread that runs its iterations. *owned* bytes on the GPU are known
        to be its own.

        The job ends with the block: one that has iterations left is withdrawn, one that raises has failed.
        """
        options = checked_options(name, needs, iterations, priority, demand)
        live = LiveJob(self._driver, self._of_thread, next(self._numbers), name, options, owned)
        try:
            with self.backend.job_thread():
                yield from live.life(needs)
        except BaseException as error:
            live.leave(described(error))
            raise
        live.leave()

    def rows(self) -> list[JobRow]:
        return self._driver.rows()

    def now(self) -> Time:
        return self._driver.now()
