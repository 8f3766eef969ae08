"""What network threads have counted of calls is brought into the accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from astrarium.server.control.accounts.histogram import TIME_BOUNDS
from astrarium.server.control.accounts.model_accounts import ModelAccounts

Histogram = tuple[Sequence[int], int]  # counts by upper bound, and nanoseconds
Sum = tuple[int, int]  # a count, and nanoseconds
_NO_TIMES: Histogram = ([0] * (len(TIME_BOUNDS) + 1), 0)


class Tally(NamedTuple):
    """A tally is what network threads have counted of a model's calls, in all or since the last time."""

    accepted: int = 0
    items: int = 0
    declined: int = 0
    ended: Mapping[tuple[str, str], int] = {}  # by outcome and cause
    refused: Mapping[str, int] = {}  # by kind
    latency: Histogram = _NO_TIMES
    queueing: Histogram = _NO_TIMES
    success: Sum = (0, 0)
    fail: Sum = (0, 0)
    queue: Sum = (0, 0)


def growth(before: Any, now: Any) -> Any:
    """Return what numbers have grown by, in whatever they are wrapped."""
    if isinstance(now, int):
        return now - before
    if isinstance(now, Mapping):
        return {key: number - before.get(key, 0) for key, number in now.items()}
    return tuple(map(growth, before, now))


def enter(accounts: ModelAccounts, new: Tally) -> None:
    """Enter what network threads have newly counted in a model's accounts."""
    accounts.accepted += new.accepted
    accounts.items += new.items
    if new.declined:
        accounts.declined += new.declined
        accounts.declined_because = "it is overloaded"
    accounts.ended.update({key: number for key, number in new.ended.items() if number})
    accounts.ended_in_all += sum(new.ended.values())
    accounts.refused.update({kind: number for kind, number in new.refused.items() if number})
    for histogram, (counts, ns) in ((accounts.latency, new.latency), (accounts.queueing, new.queueing)):
        histogram.enter(counts, ns)
    for total, (number, ns) in (
        (accounts.success, new.success),
        (accounts.fail, new.fail),
        (accounts.queue, new.queue),
    ):
        total.add(ns, number)
