"""How the time is shared that a job has for leaving: this module alone computes it, and all others ask.

Grace is what the file of a cluster says: so long may a job take to write its checkpoint and to leave, from
the wish to stop on. Whoever waits for another one waits a little longer than that one: the job is ended by
its runner, the runner by its keeper, and the keeper by the site that an arbiter has asked to do so.
"""

from __future__ import annotations

import math
from typing import NamedTuple

GRACE = 30.0  # seconds, where nobody says another number
PATIENCE = 10.0  # seconds, where nobody says another number, that an arbiter waits for news that is late
_START = 1 / 2  # of the grace: a job that is not up by then is asked all the same
_LEAVING = 1 / 4  # of the grace: what is left to a session, from when it hears that it is to stop
_KEEPER = 2.0  # seconds beyond the grace
_POD = 10  # seconds beyond the grace


class Grace(NamedTuple):
    """The time that a job has for leaving, in seconds, and what others make of it."""

    job: float = GRACE

    @property
    def start(self) -> float:
        """For so long a job that is still starting hears nothing of a wish to stop: every run gets somewhere.
        It is half of the time: as much is left for the checkpoint."""
        return self.job * _START

    @property
    def leaving(self) -> float:
        """So long a session that was asked waits for room for its checkpoint. Half of the grace may be over
        when it hears of it (`start`); half of the rest it needs to leave by itself."""
        return self.job * _LEAVING

    @property
    def keeper(self) -> float:
        """The runner ends a job whose time (`job`) is over. After this the keeper ends the runner, too: a
        runner that is as late as that was halted, or hangs."""
        return self.job + _KEEPER

    def resize(self, up: bool) -> float:
        """A job that is *up* has as long to take other GPUs as it has for leaving; one that is still starting
        has twice that, since nothing of it hears yet. Then it is asked to stop."""
        return self.job * (1 if up else 2)

    def arbiter(self, patience: float) -> float:
        """Return after how long an arbiter has the site end a run. *Patience* is what a folder may take to
        show what was written elsewhere: the keeper may have ended the job in time."""
        return self.job + patience

    @property
    def site(self) -> int:
        """A scheduler that counts whole seconds is told of the grace with this."""
        return math.ceil(self.job)

    @property
    def pod(self) -> int:
        """Kubernetes ends a pod after this: the keeper in it still has to tell how its job has ended."""
        return self.site + _POD

    @property
    def handover(self) -> float:
        """A lease does not run while the run before it leaves its GPUs, for so long at most: twice the grace.
        Whoever leaves in time, late news included, costs the next one nothing."""
        return 2 * self.job
