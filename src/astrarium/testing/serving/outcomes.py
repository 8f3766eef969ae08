"""What a finished run shows of its requests and batches, in forms that can be compared."""

from __future__ import annotations

from typing import Any

from astrarium.core.quantities import Time
from astrarium.serving.ledger import Fate, Outcome
from astrarium.testing.checks import ensure
from astrarium.testing.serving.audit import audit
from astrarium.testing.serving.cases import Run


def first_batch(run: Run) -> tuple[int, Time, list[int]]:
    """GPU, an instant in the middle, and the members of the first batch that ran to its end."""
    ledger = run.state.ledger
    first = list(ledger.batch_fate).index(Fate.FINISHED)
    middle = (ledger.batch_started[first] + ledger.batch_finished[first]) // 2
    members = [request for request, batch in enumerate(ledger.batch) if batch == first]
    return ledger.batch_gpu[first], middle, members


def all_in_time(run: Run) -> None:
    ledger = run.state.ledger
    missed = [
        (request, Outcome(outcome).name, ledger.reasons[ledger.reason[request]])
        for request, outcome in enumerate(ledger.outcome)
        if outcome != Outcome.IN_TIME
    ]
    ensure(not missed, f"a light load with room to spare, and yet: {missed}")


def outcomes(run: Run) -> list[tuple[int, str]]:
    ledger = run.state.ledger
    return [(o, ledger.reasons[r]) for o, r in zip(ledger.outcome, ledger.reason, strict=True)]


def endings(run: Run, shift: Time = 0) -> list[tuple[tuple[int, str], Time]]:
    return list(zip(outcomes(run), (done - shift for done in run.state.ledger.done), strict=True))


def batches(run: Run, shift: Time = 0) -> list[tuple[Any, ...]]:
    """GPU, members, order, start, end and fate of every batch, whatever their numbers."""
    rows = []
    for batch in audit(run).sent:
        times = (at - shift for at in (batch.ordered, batch.started, batch.ended))
        rows.append((batch.gpu, sorted(request.id for request in batch.requests), *times, batch.fate))
    return sorted(rows, key=lambda batch: batch[2:])


def members(run: Run) -> list[list[int]]:
    return sorted(sorted(request.id for request in batch.requests) for batch in audit(run).sent)
