"""At the door: what a call is promised, or why it is not let in."""

from __future__ import annotations

from typing import NamedTuple

from astrarium.core.errors import one_of
from astrarium.core.quantities import rounded_duration
from astrarium.core.units import FOREVER, Time
from astrarium.server.contract import InferCall, Kind, Refused
from astrarium.server.control.bounds import alone
from astrarium.server.control.repository import Entry
from astrarium.serving.setup import Setup


class Promise(NamedTuple):
    deadline: Time
    application: int


def let_in(call: InferCall, entry: Entry, setup: Setup, now: Time) -> Promise:
    """Refused where the model is not ready, or where not even an idle GPU would be in time."""
    if entry.state != "READY":
        raise Refused(Kind.UNAVAILABLE, f"model {call.model} is not ready: {entry.reason}")
    objective = min(_objective(call, entry), FOREVER if call.patience is None else call.patience)
    deadline = call.received + objective
    needed = alone(setup.models[entry.plan.index], setup.network)
    if now + needed > deadline:
        asked, takes, passed = map(rounded_duration, (objective, needed, now - call.received))
        raise Refused(
            Kind.DEADLINE,
            f"model {call.model} cannot answer within {asked}: one request alone takes {takes}, "
            f"and {passed} had passed",
        )
    return Promise(deadline, _application(call, entry))


def asks_what_was_promised(call: InferCall, entry: Entry) -> bool:
    """Whether a refusal is the model's: a call that allows less than its objective has itself to blame."""
    slo, timeout, patience = entry.plan.slo, call.timeout, call.patience
    return (timeout is None or timeout >= slo) and (patience is None or patience >= slo)


def _objective(call: InferCall, entry: Entry) -> Time:
    """The call's own timeout, or that of its priority, or the model's."""
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
    """Models whose times do not vary have no applications: any tag will do."""
    known = entry.plan.applications
    if not known or not call.application:
        return 0
    if call.application not in known:
        expected = one_of(list(known), call.application)
        raise Refused(Kind.BAD_REQUEST, f"application: expected {expected} (got {call.application!r})")
    return known.index(call.application)
