"""What the client of a call that was accepted and has no answer is told."""

from __future__ import annotations

from astrarium.server.contract import Kind, Refused
from astrarium.server.control.accounts.causes import QUARANTINED
from astrarium.server.control.calls.admission import overloaded
from astrarium.server.control.calls.ticket import Ticket
from astrarium.serving.contract import EXPIRED, UNSERVED
from astrarium.serving.ledger import Outcome


def refusal(ticket: Ticket) -> Refused:
    """Return what the client of a call without an answer is told."""
    name = ticket.call.model
    if ticket.cause == QUARANTINED:
        return Refused(Kind.UNPROCESSABLE, f"model {name} does not take this input: {ticket.reason}")
    if ticket.outcome is Outcome.FAILED:
        if ticket.blamed is Kind.OVERLOADED:
            return overloaded(f"model {name}: {ticket.reason}")
        if ticket.blamed is not Kind.MODEL_FAILED:
            return Refused(ticket.blamed, f"model {name}: {ticket.reason}")
        return Refused(Kind.MODEL_FAILED, f"model {name} failed: {ticket.reason}")
    if ticket.cause == EXPIRED:
        return Refused(Kind.DEADLINE, f"model {name}: the deadline can no longer be met")
    if ticket.cause == UNSERVED:
        return Refused(Kind.UNAVAILABLE, f"model {name}: the server stopped before it came to this call")
    return overloaded(f"model {name} dropped the call so that others are in time ({ticket.cause})")
