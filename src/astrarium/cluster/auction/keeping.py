"""What a winner keeps of its GPUs after the hidden payment: so many of them, placed as well as can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod

from astrarium.cluster.auction.goods import FreeMachine

Rho = Callable[[tuple[int, ...]], float]  # what GPUs lead to; the smaller, the better
ALL_OF = 300  # subsets: up to so many are all looked at


def kept(
    won: Sequence[int], count: int, goods: Sequence[FreeMachine], rho: Rho | None = None
) -> tuple[int, ...]:
    """At most *count* of *won*. With *rho*, fewer where more are worth no more, such as a part of a gang."""
    if count >= len(won):
        return tuple(won)
    piles = _piles(won, goods)
    packed = _packed(piles, count)
    if rho is None:
        return packed
    subsets = {
        packed,
        (),
        *(_all(piles) if prod(len(p) + 1 for p in piles) <= ALL_OF else _dropping(piles, rho)),
    }
    return min((s for s in subsets if len(s) <= count), key=lambda gpus: (rho(gpus), len(gpus), gpus))


def _piles(won: Sequence[int], goods: Sequence[FreeMachine]) -> list[list[int]]:
    """By machine, so that the first so many of a pile are the closest together."""
    mine = set(won)
    piles = [[gpu for gpu in machine.ordered() if gpu in mine] for machine in goods]
    return [pile for pile in piles if pile]


def _packed(piles: list[list[int]], count: int) -> tuple[int, ...]:
    """On as few machines as can be: whole piles from the largest, and the smallest that holds the rest."""
    taken: list[int] = []
    left = sorted(piles, key=len)
    while len(taken) < count:
        rest = count - len(taken)
        pile = next((pile for pile in left if len(pile) >= rest), left[-1])
        left.remove(pile)
        taken += pile[:rest]
    return tuple(sorted(taken))


def _all(piles: list[list[int]]) -> Iterator[tuple[int, ...]]:
    """However many of each pile."""
    for counts in product(*(range(len(pile) + 1) for pile in piles)):
        yield _first(piles, counts)


def _dropping(piles: list[list[int]], rho: Rho) -> Iterator[tuple[int, ...]]:
    """One GPU after another is given up: always the one that is missed least."""
    counts = [len(pile) for pile in piles]
    while any(counts):
        fewer = [tuple(n - (k == pile) for k, n in enumerate(counts)) for pile, n in enumerate(counts) if n]
        counts = list(min(fewer, key=lambda each: (rho(_first(piles, list(each))), each)))
        yield _first(piles, counts)


def _first(piles: list[list[int]], counts: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(gpu for pile, n in zip(piles, counts, strict=True) for gpu in pile[:n]))
