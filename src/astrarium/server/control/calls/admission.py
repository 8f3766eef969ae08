"""The native admission says who is let in and why others are not; here it judges calls read by Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astrarium.core.quantities import Time
from astrarium.server.contract import Kind, Refused

if TYPE_CHECKING:
    from astrarium._front import Admission, CallCost

RETRY_AFTER = 1.0
_KINDS = {  # of refusals, by the names of verdicts
    "CLOSED": Kind.UNAVAILABLE,
    "TOO_LATE": Kind.DEADLINE,
    "FULL": Kind.OVERLOADED,
    "AWAY": Kind.UNAVAILABLE,
    "BACKLOG": Kind.OVERLOADED,
}


def overloaded(reason: str) -> Refused:
    return Refused(Kind.OVERLOADED, f"overloaded: {reason}", RETRY_AFTER)


def admit(
    admission: Admission, model: int, name: str, cost: CallCost, received: Time, objective: Time, now: Time
) -> None:
    """Let a call in, which is open until the admission hears that it has ended; or say why not."""
    verdict = admission.admit(model, cost, objective, received, now)
    if verdict.name == "TAKEN":
        return
    kind = _KINDS[verdict.name]
    reason = admission.words(verdict, model, name, cost, objective, received, now)
    raise Refused(kind, reason, None if kind is Kind.DEADLINE else RETRY_AFTER)
