"""A job is charged the memory that was measured over its first iterations, and what turns show later."""

from __future__ import annotations

from astrarium.device.contract import NeedsChanged
from astrarium.device.live.backend import Excess, Needs, Reading, Turn

MEASURED = 3  # iterations of a job that does not say what it needs; the first makes what stays
KEEP = "keep numbers (loss.item()) or copies off the GPU (output.detach().cpu()) instead"


class Charges:
    """A live job has its charges from the start: it arrives with what they say, once enough was measured."""

    def __init__(self, job: int) -> None:
        self._job = job
        self._read: list[Needs] = []
        self._known: Needs | None = None
        self._charged = (0, 0)  # persistent and ephemeral bytes, as the state has them
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
        return Needs(
            persistent=read[-1].persistent,
            ephemeral=max(needs.ephemeral for needs in read),
            iteration=min(needs.iteration for needs in read),
        )

    def known(self, needs: Needs) -> None:
        self._known = needs
        self._charged = (needs.persistent, needs.ephemeral)

    def lowered(self, by: int) -> NeedsChanged:
        """Charge the job less: some of what was taken for its own has turned out to be another's."""
        assert self._known is not None
        self._known = self._known._replace(persistent=self._known.persistent - by)
        self._charged = (self._charged[0] - by, self._charged[1])
        return NeedsChanged(self._job, *self._charged)

    def exceeded(self, turn: Turn, excess: Excess) -> list[NeedsChanged]:
        """Return the event that follows from an excess, if any does. A lane that is not larger than it should
        be says nothing of this job: another one needs it."""
        assert self._known is not None
        lane = excess.lane if excess.lane > turn.size else 0
        needed = (self._known.persistent + excess.held, max(self._known.ephemeral, lane))
        if needed == self._charged:
            return []
        self._charged = needed
        return [NeedsChanged(self._job, *needed)]

    def warning(self, turn: Turn, excess: Excess) -> str:
        """Return a warning, once for each kind of trouble; else nothing."""
        if excess.leaks in self._warned or not (excess.leaks or excess.lane > turn.size):
            return ""
        self._warned.add(excess.leaks)
        if excess.leaks:
            return _leak(excess)
        text = f"an iteration took {excess.lane} bytes, and its lane had {turn.size}"
        return f"{text}: the job is charged the more"


def _leak(excess: Excess) -> str:
    where = f", made at {'; '.join(excess.where)}" if excess.where else ""
    return (
        f"{excess.held} bytes more than at first outlive its iterations, in {excess.blocks} blocks{where}; "
        f"they are charged to the job: {KEEP}"
    )
