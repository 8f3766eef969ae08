"""What stands in the books of the cluster level, and what a policy may ask of them: who is there, who holds
which GPU until when, what runs where, and what is believed of it. `state` changes them."""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.cluster.apps import Job
from astrarium.cluster.ledger import AppRow, JobRow, Ledger
from astrarium.cluster.machines import Floor
from astrarium.cluster.slowdown import Slowdowns
from astrarium.core.errors import BrokenBooks
from astrarium.core.units import Time


class Books:
    """*slowdowns* is what is believed, and learnt from runs; *startup* how long a run is taken to need before
    it gets anywhere, *checkpoints* how far apart they are (0: all is saved that is done)."""

    def __init__(
        self,
        slowdowns: Slowdowns | None = None,
        startup: Time = 0,
        ledger: Ledger | None = None,
        checkpoints: Time = 0,
    ) -> None:
        self.floor, self.slowdowns, self.startup = Floor(), slowdowns or Slowdowns(), startup
        self._checkpoints = checkpoints
        self.ledger = ledger or Ledger()
        self.apps: dict[int, AppRow] = {}  # those that are there, in order of arrival
        self.holder: dict[int, int] = {}  # the app that has a GPU
        self.free: set[int] = set()
        self.unsettled: dict[
            int, None
        ] = {}  # apps whose GPUs or jobs have changed: what runs is to be arranged
        self._crowd, self._crowd_at = 0.0, 0  # the integral of the number of apps

    def pace(self, job: Job, gpus: Sequence[int]) -> float:
        """Believed: work done in a unit of time."""
        if len(gpus) < job.least:
            return 0.0
        spread, network = self.floor.spread(gpus), self.floor.network(gpus)
        return min(len(gpus), job.most) / self.slowdowns.of(job.model, network, spread)

    def done(self, now: Time, row: JobRow) -> Time:
        """Believed, of a job's work; it cannot have ended without our hearing of it."""
        if not row.gpus:
            return row.done
        done = row.done + round(max(0, now - row.since) * self.pace(row.job, row.gpus))
        return min(done, max(row.done, row.job.forecast - 1))

    def unsaved(self, now: Time, row: JobRow) -> Time:
        """How long it has run since its last checkpoint, as far as is known."""
        ran = max(0, now - row.since) if row.gpus else 0
        return ran % self._checkpoints if self._checkpoints else 0

    def service(self, now: Time, row: AppRow) -> Time:
        """GPU time that the app has had."""
        return row.service + (now - row.counted) * len(row.leases)

    def ran(self, now: Time, row: AppRow) -> Time:
        """GPU time in which its jobs got somewhere: without what startups took, and GPUs that were idle."""
        ran = row.ran
        for job in row.jobs.values():
            if job.gpus:
                ran += since(now, job)
        return ran

    def contention(self, now: Time, row: AppRow) -> float:
        """The mean number of apps since it came."""
        lived = now - row.arrived
        return (self.crowd_until(now) - row.crowd) / lived if lived else float(len(self.apps))

    def crowd_until(self, now: Time) -> float:
        """The integral of the number of apps over time."""
        return self._crowd + len(self.apps) * (now - self._crowd_at)

    def validate(self) -> None:
        held = {gpu: app for app, row in self.apps.items() for gpu in row.leases}
        if held != self.holder or self.free & held.keys():
            raise BrokenBooks("a GPU is leased twice, or both leased and free")
        if len(held) + len(self.free) != self.floor.size:
            raise BrokenBooks("a GPU is neither free nor leased")
        for row in self.apps.values():
            used = [gpu for job in row.jobs.values() for gpu in job.gpus]
            if len(used) != len(set(used)) or not set(used) <= row.leases.keys():
                raise BrokenBooks(f"app {row.app.name}: a job runs on a GPU that is another's")


def since(now: Time, job: JobRow) -> Time:
    """GPU time in which it got somewhere, since it was last heard of."""
    return len(job.gpus) * max(0, now - job.since)
