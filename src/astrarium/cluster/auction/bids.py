"""A bid is a table of options: what GPUs, in pieces, are worth to an app."""

from __future__ import annotations

from typing import NamedTuple


class GpuPiece(NamedTuple):
    """A number of GPUs on one machine: this one, one in this rack, or any."""

    gpus: int
    machine: int | None = None
    rack: int | None = None


class BidOption(NamedTuple):
    """Pieces, and the *rho* that they would lead to (small is good). *one_rack*: all pieces lie in one."""

    pieces: tuple[GpuPiece, ...]
    rho: float
    one_rack: bool = False

    @property
    def gpus(self) -> int:
        return sum(piece.gpus for piece in self.pieces)


class Bid(NamedTuple):
    """At most one of its options wins. *rho_old* is the bidder's rho without any: finite, as 1/rho = 0 ends
    comparisons."""

    bidder: int
    rho_old: float
    options: tuple[BidOption, ...]
