"""Limits of a live run: what becomes of runs that are lost or stuck, and how often the loop looks."""

from __future__ import annotations

import msgspec

from astrarium.core.quantities import FOREVER, SECOND, Time


class LiveLimits(msgspec.Struct, frozen=True):
    """A trial whose runs are lost more than *retries* times without progress
    fails. Progress reaches the policy no more often than *progress*; in between, the state interpolates. The
    loop waits *patience* for news. A trial fails whose iteration takes more than *longest*, or whose run has
    not ended its first iteration so long after it was started. Where a search is stopped, runs may take
    *leaving* to end their iteration and to save."""

    retries: int = 2
    progress: Time = SECOND
    patience: Time = SECOND // 2
    longest: Time = FOREVER
    leaving: Time = 30 * SECOND
