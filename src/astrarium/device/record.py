"""A finished run: the numbers that job schedulers are compared by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from astrarium.core.units import Time
from astrarium.device.ledger import JobRow, Outcome


@dataclass(frozen=True)
class Summary:
    """Over the jobs that finished; times in nanoseconds."""

    finished: int
    makespan: Time
    mean_queueing: float  # from arrival to the first iteration
    mean_completion: float
    p95_completion: float


def summary(rows: Iterable[JobRow]) -> Summary:
    ended = [row for row in rows if row.outcome is Outcome.FINISHED]
    if not ended:
        return Summary(0, 0, 0.0, 0.0, 0.0)
    completion = sorted(row.ended - row.arrived for row in ended)
    return Summary(
        finished=len(ended),
        makespan=max(row.ended for row in ended) - min(row.arrived for row in ended),
        mean_queueing=sum(row.started - row.arrived for row in ended) / len(ended),
        mean_completion=sum(completion) / len(ended),
        p95_completion=float(completion[min(len(completion) - 1, round(0.95 * (len(completion) - 1)))]),
    )
