"""Which cell a request goes to: each model's requests are dealt out in turn, in fixed proportions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from astrarium.placement.cells import Station

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

NOWHERE = -1
WHOLE = 1000  # parts are told in thousandths: finer ones would only tell chance apart
WORTH = 10  # smaller parts are given up: a few stray requests make batches of one
_ROUNDS = 200
_STILL = 1e-5
_LITTLE = 1e-9  # of the largest rate: a model that gets nothing is divided as if it got a little


def balanced(rates: Sequence[float], stations: Sequence[Station]) -> Numbers:
    """Divide each model's requests among stations, in thousandths: [station, model].

    A model without a replica gets none.
    """
    costs = np.zeros((len(stations), len(rates)))
    for row, station in zip(costs, stations, strict=True):
        row[list(station.costs)] = list(station.costs.values())
    servers = np.array([station.servers for station in stations], np.float64)[:, None]
    offered = np.maximum(np.array(rates, np.float64), _LITTLE * max([*rates, 1.0]))
    lives = costs > 0
    parts = _normal(np.divide(servers, costs, out=np.zeros_like(costs), where=lives))
    for _ in range(_ROUNDS):
        load = (offered * parts * costs).sum(axis=1, keepdims=True) / servers
        better = _normal(np.divide(parts, load, out=np.zeros_like(parts), where=lives & (load > 0)))
        moved = float(np.abs(better - parts).max(initial=0.0))
        parts = better
        if moved < _STILL:
            break
    return _in_thousandths(parts)


def _normal(parts: Floats) -> Floats:
    sums = parts.sum(axis=0)
    normal: Floats = np.divide(parts, sums, out=np.zeros_like(parts), where=sums > 0)
    return normal


def _in_thousandths(parts: Floats) -> Numbers:
    """Round parts to thousandths; the largest part takes what is left."""
    thousandths = np.rint(parts * WHOLE).astype(np.int64)
    thousandths[thousandths < WORTH] = 0
    if len(thousandths):
        lives = parts.sum(axis=0) > 0
        thousandths[parts.argmax(axis=0), np.arange(parts.shape[1])] += np.where(
            lives, WHOLE - thousandths.sum(axis=0), 0
        )
    return thousandths


def dealt(count: int, parts: Sequence[int]) -> Numbers:
    """Return for each of *count* requests, in order, which part gets it: evenly spread, never by chance.

    The n-th of the requests that somebody with a part p of all gets is due at (n + 1/2) / p; they come in
    the order in which they are due, and where two are due at once the first in the list goes first.
    """
    sharers = [place for place, part in enumerate(parts) if part > 0]
    if len(sharers) == 1:
        return np.full(count, sharers[0], np.int64)
    total = sum(parts)
    dues = []
    owners = []
    for place in sharers:
        needed = (count + len(sharers)) * parts[place] // total + 2
        dues.append((2 * np.arange(needed) + 1) / (2 * parts[place]))
        owners.append(np.full(needed, place, np.int64))
    order = np.argsort(np.concatenate(dues), kind="stable")[:count]
    return np.concatenate(owners)[order]


def assigned(models: Numbers, parts: Numbers) -> Numbers:
    """Return for each request, by its model, the row of *parts* that gets it; NOWHERE if none does."""
    rows = np.full(len(models), NOWHERE, np.int64)
    order = np.argsort(models, kind="stable")
    edges = np.searchsorted(models[order], np.arange(parts.shape[1] + 1))
    for model, (first, last) in enumerate(pairwise(edges.tolist())):
        column = parts[:, model].tolist()
        if first < last and any(column):
            rows[order[first:last]] = dealt(last - first, column)
    return rows
