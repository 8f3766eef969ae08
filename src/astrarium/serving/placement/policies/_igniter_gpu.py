"""What iGniter's pieces of work do to a GPU that they share: shares rise until everybody is in time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from astrarium.serving.placement.igniter_model import (
    WHOLE,
    GpuTraits,
    Load,
    ModelTraits,
    Prediction,
    predict,
    share_for,
)

_ROUNDING = 1e-9


class Piece(msgspec.Struct, frozen=True):
    """What one replica of a model should do: *rate* requests a second in batches that take *budget* ms at
    most. One that is *whole* has a GPU for itself."""

    model: int
    traits: ModelTraits
    batch: int
    rate: float
    budget: float
    memory: int
    whole: bool = False


class Trial(msgspec.Struct, frozen=True):
    """Shares, in units, of those on a GPU and of one more; *added* to what they had and it needs alone."""

    added: int
    units: tuple[int, ...]
    piece: Piece


class SharedGpu:
    def __init__(self, id_: int, memory: int, traits: GpuTraits) -> None:
        self.id, self.memory, self.traits = id_, memory, traits
        self.capacity = int(WHOLE / traits.unit)
        self.pieces: list[Piece] = []
        self.units: tuple[int, ...] = ()

    @property
    def full(self) -> bool:
        return sum(self.units) >= self.capacity

    def least_units(self, piece: Piece) -> int:
        """For a piece alone; beyond the capacity where it cannot be in time."""
        if piece.whole:
            return self.capacity
        share = share_for(self.traits, piece.traits, piece.batch, piece.budget)
        return round(min(share, 2 * WHOLE) / self.traits.unit)

    def tried(self, piece: Piece) -> Trial | None:
        """With one more, if all can be in time."""
        pieces = [*self.pieces, piece]
        if sum(each.memory for each in pieces) > self.memory:
            return None
        least = self.least_units(piece)
        before = sum(self.units) + least
        units = [*self.units, least]
        while sum(units) <= self.capacity:
            late = self._late(pieces, units)
            if not late:
                return Trial(sum(units) - before, tuple(units), piece)
            for place in late:
                units[place] += 1
        return None

    def settle(self, trial: Trial) -> None:
        self.pieces.append(trial.piece)
        self.units = trial.units

    def share(self, place: int) -> float:
        """In percent."""
        return self.units[place] * self.traits.unit

    def predictions(self) -> list[Prediction]:
        return self._predicted(self.pieces, self.units)

    def _late(self, pieces: Sequence[Piece], units: Sequence[int]) -> list[int]:
        found = zip(pieces, self._predicted(pieces, units), strict=True)
        return [place for place, (piece, expected) in enumerate(found) if not _in_time(piece, expected)]

    def _predicted(self, pieces: Sequence[Piece], units: Sequence[int]) -> list[Prediction]:
        loads = [
            Load(piece.traits, piece.batch, count * self.traits.unit)
            for piece, count in zip(pieces, units, strict=True)
        ]
        return predict(self.traits, loads)


def _in_time(piece: Piece, expected: Prediction) -> bool:
    """And not falling behind. On the kind of GPU that a piece was sized for, one follows from the other."""
    return expected.latency <= piece.budget and expected.throughput >= piece.rate * (1 - _ROUNDING)
