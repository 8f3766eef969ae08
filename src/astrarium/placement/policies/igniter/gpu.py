"""What iGniter's pieces of work do to a GPU that they share: shares rise until everybody is in time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from astrarium.placement.igniter import model as igniter

_ROUNDING = 1e-9


class ReplicaLoad(msgspec.Struct, frozen=True):
    """A replica's load is *rate* requests a second in batches that take *budget* ms at most.

    One that is *whole* has a GPU for itself.
    """

    model: int
    traits: igniter.ModelTraits
    batch: int
    rate: float
    budget: float
    memory: int
    whole: bool = False


class ShareTrial(msgspec.Struct, frozen=True):
    """A trial holds the shares, in units, of the replicas on a GPU and of one more.

    *added* is what they have beyond what they had, and what it needs alone.
    """

    added: int
    units: tuple[int, ...]
    piece: ReplicaLoad


class IgniterGpu:
    def __init__(self, id_: int, memory: int, traits: igniter.GpuTraits) -> None:
        self.id = id_
        self.memory = memory
        self.traits = traits
        self.capacity = int(igniter.WHOLE / traits.unit)
        self.pieces: list[ReplicaLoad] = []
        self.units: tuple[int, ...] = ()

    @property
    def full(self) -> bool:
        return sum(self.units) >= self.capacity

    def least_units(self, piece: ReplicaLoad) -> int:
        """Return the units that a piece needs alone; more than the capacity where it cannot be in time."""
        if piece.whole:
            return self.capacity
        share = igniter.share_for(self.traits, piece.traits, piece.batch, piece.budget)
        return round(min(share, 2 * igniter.WHOLE) / self.traits.unit)

    def tried(self, piece: ReplicaLoad) -> ShareTrial | None:
        """Return the shares with one more piece, if all can be in time; else None."""
        pieces = [*self.pieces, piece]
        if sum(member.memory for member in pieces) > self.memory:
            return None
        least = self.least_units(piece)
        before = sum(self.units) + least
        units = [*self.units, least]
        while sum(units) <= self.capacity:
            late = self._late(pieces, units)
            if not late:
                return ShareTrial(sum(units) - before, tuple(units), piece)
            for place in late:
                units[place] += 1
        return None

    def settle(self, trial: ShareTrial) -> None:
        self.pieces.append(trial.piece)
        self.units = trial.units

    def share(self, place: int) -> float:
        """Return a replica's share in percent."""
        return self.units[place] * self.traits.unit

    def predictions(self) -> list[igniter.Prediction]:
        return self._predicted(self.pieces, self.units)

    def _late(self, pieces: Sequence[ReplicaLoad], units: Sequence[int]) -> list[int]:
        predictions = zip(pieces, self._predicted(pieces, units), strict=True)
        return [place for place, (piece, expected) in enumerate(predictions) if not _in_time(piece, expected)]

    def _predicted(self, pieces: Sequence[ReplicaLoad], units: Sequence[int]) -> list[igniter.Prediction]:
        loads = [
            igniter.TenantLoad(piece.traits, piece.batch, count * self.traits.unit)
            for piece, count in zip(pieces, units, strict=True)
        ]
        return igniter.predict(self.traits, loads)


def _in_time(piece: ReplicaLoad, expected: igniter.Prediction) -> bool:
    """Whether a piece is in time and does not fall behind.

    On the kind of GPU that it was sized for, one follows from the other.
    """
    return expected.latency <= piece.budget and expected.throughput >= piece.rate * (1 - _ROUNDING)
