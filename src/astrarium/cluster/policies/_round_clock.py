"""Policies that decide in rounds go by a round clock, as in Gavel and Shockwave."""

from __future__ import annotations

from astrarium.cluster.state import ClusterState
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import Time

NAME = "round"


class RoundClock:
    """The clock says when a round begins: who runs is decided then only, or where nobody holds a GPU."""

    def __init__(self, length: Time) -> None:
        self.length = length
        self._began: Time = 0

    def begins(self, now: Time, state: ClusterState) -> bool:
        """Return whether a new round begins at this instant; if so, it is taken to have begun."""
        begins = not state.holder or (now - self._began) % self.length == 0
        if begins:
            self._began = now
        return begins

    def next(self, now: Time) -> SetTimer:
        """Return the timer that fires when the next round begins."""
        return SetTimer(now + self.length - (now - self._began) % self.length, NAME)
