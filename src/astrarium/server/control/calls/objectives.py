"""What a call asks of its model: an objective, and the application that it belongs to."""

from __future__ import annotations

from typing import NamedTuple

from astrarium.core.errors import one_of
from astrarium.core.quantities import FOREVER, Time
from astrarium.server.contract import InferCall, Kind, Refused
from astrarium.server.control.repository import Entry


class Wanted(NamedTuple):
    """What a call wants of its model: an answer within its objective, as one of an application's requests."""

    objective: Time
    application: int


def wanted(call: InferCall, entry: Entry) -> Wanted:
    """Return what a call wants; it is refused if the model is not ready, or knows nothing of the kind."""
    if entry.state != "READY":
        raise Refused(Kind.UNAVAILABLE, f"model {call.model} is not ready: {entry.reason}")
    objective = min(_objective(call, entry), FOREVER if call.patience is None else call.patience)
    return Wanted(objective, _application(call, entry))


def asks_what_was_promised(call: InferCall, entry: Entry) -> bool:
    """Whether a call allows the model its objective, so that a refusal is not the call's own fault."""
    slo = entry.plan.slo
    timeout = call.timeout
    patience = call.patience
    return (timeout is None or timeout >= slo) and (patience is None or patience >= slo)


def _objective(call: InferCall, entry: Entry) -> Time:
    """Return the call's own timeout, or that of its priority, or the model's objective."""
    if call.timeout is not None:
        return call.timeout
    priorities = entry.plan.priorities
    if not call.priority or not priorities:
        return entry.plan.slo
    if call.priority not in priorities:
        known = one_of([str(level) for level in priorities])
        raise Refused(Kind.BAD_REQUEST, f"priority: expected {known} (got {call.priority})")
    return priorities[call.priority]


def _application(call: InferCall, entry: Entry) -> int:
    """Return the number of the call's application; for models without applications any tag will do."""
    known = entry.plan.applications
    if not known or not call.application:
        return 0
    if call.application not in known:
        expected = one_of(list(known), call.application)
        raise Refused(Kind.BAD_REQUEST, f"application: expected {expected} (got {call.application!r})")
    return known.index(call.application)
