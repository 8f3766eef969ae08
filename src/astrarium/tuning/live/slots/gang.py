"""A gang is the slots that train one run together."""

from __future__ import annotations

from dataclasses import dataclass, field

from astrarium.tuning.live.backend import Ending, RunEnded, Work
from astrarium.tuning.live.slots.messages import MemberEnded


@dataclass
class Gang:
    """The backend makes a gang for each run that it is ordered to start; it is gone once all members are."""

    work: Work
    slots: list[int]  # by rank
    saved: int  # iterations of the newest checkpoint
    ends: dict[int, MemberEnded | None] = field(default_factory=dict)  # by rank; None: the member is gone
    why: str = ""  # the first that went
    dropped: bool = False
    killed: set[int] = field(default_factory=set)  # ranks, by us
    deadline: float | None = None

    def run_ended(self) -> RunEnded:
        """Return the end of the run: lost, if a member went by itself; a member's own error comes before
        those that follow from it."""
        leader = self.ends.get(0)
        value = leader.value if leader is not None else None
        ending, error = self._ending()
        return RunEnded(self.work.trial, self.work.run, ending, self.saved, value, error)

    def _ending(self) -> tuple[Ending, str]:
        ends = [end for end in self.ends.values() if end is not None]
        failed = sorted((end for end in ends if end.ending == "failed"), key=lambda end: end.trouble)
        died = [rank for rank, end in self.ends.items() if end is None and rank not in self.killed]
        if self.dropped:
            return "left", ""
        if failed and not failed[0].trouble:
            return "failed", failed[0].error
        if died or failed or not ends:
            return "lost", self.why or (failed[0].error if failed else "")
        if any(end.ending == "finished" for end in ends):
            return "finished", ""
        return ("left", "") if self.ends.get(0) is not None else ("lost", self.why)
