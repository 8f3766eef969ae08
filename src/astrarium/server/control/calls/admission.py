"""The native admission says who is let in; here it is asked for calls that Python has read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astrarium.core.quantities import MILLISECOND, Time, rounded_duration
from astrarium.server.contract import Kind, Refused

if TYPE_CHECKING:
    from astrarium._front import Admission, CallCost

RETRY_AFTER = 1.0
TAKEN, CLOSED, TOO_LATE, FULL, AWAY, BACKLOG = range(6)  # verdicts, as in native/exchange/admission.h


def overloaded(reason: str) -> Refused:
    return Refused(Kind.OVERLOADED, f"overloaded: {reason}", RETRY_AFTER)


def admit(
    admission: Admission, model: int, name: str, cost: CallCost, received: Time, objective: Time, now: Time
) -> None:
    """Let a call in, which is open until the admission hears that it has ended; or say why not."""
    verdict = admission.admit(model, cost, objective, received, now)
    if verdict == FULL:
        raise overloaded(f"{admission.open()} calls are open already, the most that may be")
    if verdict == BACKLOG:
        open_calls = f"model {name} has {admission.open_of(model)} calls open"
        raise overloaded(f"{open_calls}, more than can be answered in {objective / MILLISECOND:g} ms")
    if verdict == TOO_LATE:
        raise _too_late(name, cost, objective, now - received)
    if verdict == AWAY:
        reason = f"model {name}: no worker is up; one is expected soon, but not in time"
        raise Refused(Kind.UNAVAILABLE, reason, RETRY_AFTER)
    if verdict == CLOSED:
        raise Refused(Kind.UNAVAILABLE, "no calls are taken now")


def _too_late(name: str, cost: CallCost, objective: Time, passed: Time) -> Refused:
    allowed, takes, gone = map(rounded_duration, (objective, cost.needed, passed))
    request = f"one request of length {cost.length}" if cost.length else "one request"
    spent = f"{request} alone takes {takes}, and {gone} had passed"
    return Refused(Kind.DEADLINE, f"model {name} cannot answer within {allowed}: {spent}")
