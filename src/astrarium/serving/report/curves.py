"""Curves are the numbers behind the pictures: a record boiled down to a few hundred points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from astrarium.core.quantities import MILLISECOND, SECOND, to_seconds
from astrarium.serving.ledger import Fate, Outcome
from astrarium.serving.record import ServingRecord
from astrarium.serving.report.summary import measured_requests

Reals = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Curve:
    x: Reals
    y: Reals


def latency_cdf(record: ServingRecord, relative: bool, points: int = 800) -> Curve:
    """Return the percent of the measured requests answered within x: milliseconds, or percent of the SLO.

    Requests that were never answered keep the curve from reaching 100.
    """
    requests = record.requests
    measured = measured_requests(record)
    outcome = requests.outcome[measured]
    answered = measured[(outcome == Outcome.IN_TIME) | (outcome == Outcome.LATE)]
    latency = (requests.done[answered] - requests.arrival[answered]).astype(np.float64)
    if relative:
        latency *= 100 / (requests.deadline[answered] - requests.arrival[answered])
    else:
        latency /= MILLISECOND
    top = float(latency.max(initial=1e-9))
    counts, edges = np.histogram(latency, points, (0, top))
    share = np.cumsum(counts) * (100 / max(len(measured), 1))
    return Curve(edges, np.concatenate(([0.0], share)))


def batch_size_shares(record: ServingRecord) -> Curve:
    """Return the percent of the batches, from the end of the warm-up on, that held x requests."""
    batches = record.batches
    mine = (batches.fate == Fate.FINISHED) & (batches.dispatched >= record.warmup)
    counts = np.bincount(batches.size[mine], minlength=2)
    share = counts * (100 / max(int(counts.sum()), 1))
    return Curve(np.arange(len(counts), dtype=np.float64), share)


def rates_over_time(record: ServingRecord, bins: int = 60) -> tuple[Curve, Curve]:
    """Return the requests per second that arrived, and those of them that were answered in time."""
    requests = record.requests
    width = max(record.duration // bins, SECOND // 20, 1)  # below 50 ms a rate is mostly noise
    whole = max(record.duration // width, 1)  # a last bin cut short would look like a dip
    slot = requests.arrival // width
    scale = SECOND / width
    middle = (np.arange(whole) + 0.5) * to_seconds(width)
    offered = np.bincount(slot, minlength=whole)[:whole] * scale
    good = np.bincount(slot[requests.outcome == Outcome.IN_TIME], minlength=whole)[:whole] * scale
    return Curve(middle, offered), Curve(middle, good)


def losses(record: ServingRecord) -> dict[str, float]:
    """Return the percent of the measured requests that were lost, by how."""
    requests = record.requests
    measured = measured_requests(record)
    outcome = requests.outcome[measured]
    share = 100 / max(len(measured), 1)
    shares = {"late": float(np.count_nonzero(outcome == Outcome.LATE)) * share}
    dropped = requests.reason[measured[outcome == Outcome.DROPPED]]
    for code, count in enumerate(np.bincount(dropped, minlength=len(record.reasons)).tolist()):
        if count:
            shares[f"dropped: {record.reasons[code] or 'unstated'}"] = count * share
    shares["failed"] = float(np.count_nonzero(outcome == Outcome.FAILED)) * share
    return {name: value for name, value in shares.items() if value}
