"""What GPUs are worth to an app: a table of options, each a pattern of pieces and the rho it would lead to.

A piece is a number of GPUs on one machine: on any, on one of a rack, or on a machine that is named, such as
one where the app already holds GPUs. Two pieces may end up on one machine: that is never worse than two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from astrarium.cluster.auction.goods import FreeMachine
from astrarium.core.errors import InputError


class Piece(NamedTuple):
    gpus: int
    machine: int | None = None
    rack: int | None = None


class Option(NamedTuple):
    """*rho* is finish-time fairness: the smaller, the better. *one_rack*: all pieces in one, whichever."""

    pieces: tuple[Piece, ...]
    rho: float
    one_rack: bool = False

    @property
    def gpus(self) -> int:
        return sum(piece.gpus for piece in self.pieces)


class Bid(NamedTuple):
    """*rho_old* is what the app gets to with nothing more: finite, as 1/rho = 0 ends every comparison."""

    bidder: int
    rho_old: float
    options: tuple[Option, ...]


def option(sizes: Iterable[int], rho: float) -> Option:
    """Pieces of these sizes, on any machines."""
    return Option(tuple(Piece(size) for size in sizes), rho)


def check_bids(bids: Sequence[Bid], goods: Sequence[FreeMachine]) -> None:
    bidders, machines = [bid.bidder for bid in bids], {machine.id for machine in goods}
    if len(set(bidders)) < len(bidders):
        raise InputError("bids", bidders, "one bid of each bidder")
    for position, bid in enumerate(bids):
        _check_rho(f"bids[{position}].rho_old", bid.rho_old)
        for number, each in enumerate(bid.options):
            _check_option(f"bids[{position}].options[{number}]", each, machines)


def _check_option(where: str, each: Option, machines: set[int]) -> None:
    _check_rho(f"{where}.rho", each.rho)
    for piece in each.pieces:
        if piece.gpus < 1:
            raise InputError(f"{where}.pieces", piece.gpus, "at least one GPU in a piece")
        if piece.machine is not None and piece.machine not in machines:
            raise InputError(f"{where}.pieces", piece.machine, "a machine that is among the goods")


def _check_rho(where: str, rho: float) -> None:
    if not 0 < rho < inf:
        raise InputError(where, rho, "a finite number above 0")
