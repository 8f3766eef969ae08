"""Time in rounds, as Gavel and Shockwave have it: who runs is decided at the beginning of a round only.

A round takes so long, or until nobody holds a GPU any more. Who comes meanwhile waits for the next one, and a
GPU whose job has ended stays idle until then. Where nothing has happened, the next round is as the last, and
nobody is woken for it.
"""

from __future__ import annotations

from astrarium.cluster.state import ClusterState
from astrarium.core.policy import SetTimer
from astrarium.core.units import Time

NAME = "round"


class Rounds:
    def __init__(self, length: Time) -> None:
        self.length = length
        self._began: Time = 0

    def begins(self, now: Time, state: ClusterState) -> bool:
        """Whether a new round begins at this instant; if so, it is taken to have begun."""
        begins = not state.holder or (now - self._began) % self.length == 0
        if begins:
            self._began = now
        return begins

    def next(self, now: Time) -> SetTimer:
        """Wake me when the next one begins."""
        return SetTimer(now + self.length - (now - self._began) % self.length, NAME)
