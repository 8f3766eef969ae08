"""What a live job is charged for: memory measured over its first iterations, and what turns show later."""

from __future__ import annotations

from astrarium.device.events import NeedsChanged
from astrarium.device.ground import Excess, Needs, Reading, Turn

MEASURED = 3  # iterations of a job that does not say what it needs; the first makes what stays
KEEP = "keep numbers (loss.item()) or copies off the GPU (output.detach().cpu()) instead"


class Charges:
    def __init__(self, job: int) -> None:
        self._job = job
        self._read: list[Needs] = []
        self._known: Needs | None = None
        self._told = (0, 0)  # persistent and ephemeral bytes, as the books have them
        self._warned: set[bool] = set()

    @property
    def done(self) -> int:
        """Iterations that were measured."""
        return len(self._read)

    def measured(self, persistent: int, reading: Reading, iterations: int) -> Needs | None:
        """What a job of so many *iterations* needs, once enough was read."""
        self._read.append(Needs(persistent, max(0, reading.peak - reading.after), reading.took))
        return self.so_far() if self.done >= min(MEASURED, iterations) else None

    def so_far(self) -> Needs:
        """What stays as it was read last, since others may have built and freed theirs meanwhile; what an
        iteration takes as at its worst, and its time as at its best: what is slow at first gets faster."""
        read = self._read[1:] or self._read or [Needs(0, 0, 1)]
        persistent, ephemeral, took = zip(*read, strict=True)
        return Needs(persistent[-1], max(ephemeral), min(took))

    def known(self, needs: Needs) -> None:
        self._known, self._told = needs, (needs.persistent, needs.ephemeral)

    def lowered(self, by: int) -> NeedsChanged:
        """Some of what was taken for the job's own has turned out to be another's."""
        assert self._known is not None
        self._known = self._known._replace(persistent=self._known.persistent - by)
        self._told = (self._told[0] - by, self._told[1])
        return NeedsChanged(self._job, *self._told)

    def exceeded(self, turn: Turn, excess: Excess) -> list[NeedsChanged]:
        """What the books have to hear, if anything. What a lane has that is not larger than it should be says
        nothing of this job: another one needs it."""
        assert self._known is not None
        lane = excess.lane if excess.lane > turn.size else 0
        needed = (self._known.persistent + excess.held, max(self._known.ephemeral, lane))
        if needed == self._told:
            return []
        self._told = needed
        return [NeedsChanged(self._job, *needed)]

    def warning(self, turn: Turn, excess: Excess) -> str:
        """Once for each kind of trouble; else nothing."""
        if excess.leaks in self._warned or not (excess.leaks or excess.lane > turn.size):
            return ""
        self._warned.add(excess.leaks)
        return _leak(excess) if excess.leaks else _growth(turn, excess)


def _leak(excess: Excess) -> str:
    where = f", made at {'; '.join(excess.where)}" if excess.where else ""
    return (
        f"{excess.held} bytes more than at first outlive its iterations, in {excess.blocks} blocks{where}; "
        f"they are charged to the job: {KEEP}"
    )


def _growth(turn: Turn, excess: Excess) -> str:
    return f"an iteration took {excess.lane} bytes, and its lane had {turn.size}: the job is charged the more"
