"""Why teams have what they have, in words: of GPUs that are taken, and of apps that wait."""

from __future__ import annotations

from collections.abc import Mapping

from astrarium.cluster.teams import DAY, HOUR, Reservation
from astrarium.cluster.teams.claims import Claim
from astrarium.cluster.teams.holdings import QueueKey
from astrarium.core.quantities import SECOND, Time


def too_long(max_run: Time) -> str:
    return f"it has held GPUs for {span(max_run)}, its max_run"


def over_budget(claim: Claim) -> str:
    budget = claim.rule.budget
    assert budget is not None
    usage = f"{claim.used / HOUR:,.1f} of {budget.gpu_hours:,.4g} GPU-hours in {span(budget.over)}"
    return f"{claim.team} is over its budget ({usage})"


def taken_beyond(claim: Claim) -> str:
    """Return why a team loses GPUs that nobody else may want."""
    if claim.within is not None and claim.rule.budget is not None and claim.rule.budget.hard:
        return over_budget(claim)
    return f"{claim.team} may have {claim.entitled} now, and not borrow"


def taken(claims: Mapping[str, Claim], of: QueueKey, by: QueueKey, entitled: bool, app: str) -> str:
    """Return why GPUs of one queue are taken for an app of another, or for a reservation."""
    claim = claims[by.team]
    waits = f"app {app} waits" if app else "GPUs are kept"
    if of.team == by.team:
        return f"{waits}, which has priority {by.priority} in the same team"
    if entitled and claim.reserved:
        return f"held for the reservation of {by.team}"
    if entitled:
        return f"lent by {by.team}, whose {waits}"
    if claims[of.team].within == 0:
        return f"{over_budget(claims[of.team])}, and {by.team} wants them: its {waits}"
    return f"{by.team} has borrowed less for its weight ({claim.rule.weight:g}), and its {waits}"


def until_reserved(why: str, reservation: Reservation) -> str:
    return f"{why}; until the reservation of {reservation.team}"


def lent(why: str, claim: Claim) -> str:
    return f"{why}; lent to {claim.team} beyond its {claim.entitled}"


def waiting(
    claim: Claim, claims: Mapping[str, Claim], held: Mapping[str, int], kept: Mapping[str, int], size: int
) -> str:
    """Return why a team has no more than it has. *held*: GPUs that teams lease; *kept*: those that are free
    and kept for one."""
    team = claim.team
    has = held.get(claim.team, 0)
    reasons = []
    if claim.within == 0:
        reasons.append(over_budget(claim))
    for other, count in kept.items():
        if count and claims[other].reserved and other != team:
            reasons.append(f"{count} of {size} are held for the reservation of {other}")
        elif count and claims[other].together > 1:
            needs = f"which needs {claims[other].together} together"
            reasons.append(f"{count} of {size} are free, and held for {other}, {needs}")
    if not claim.rule.borrow and has >= claim.entitled:
        reasons.append(f"{team} has its {claim.entitled} GPUs, and may not borrow")
    elif has >= claim.entitled:
        reasons.append(_lent_out(claim, claims, held))
    elif claim.within != 0:
        reasons.append(f"{team} has {has} of its {claim.entitled} guaranteed GPUs, and gets the rest back")
    return "; ".join(reasons)


def _lent_out(claim: Claim, claims: Mapping[str, Claim], held: Mapping[str, int]) -> str:
    entitled = f"its {claim.entitled} guaranteed GPUs" if claim.entitled else "no guaranteed GPUs"
    has = f"{claim.team} has {entitled}"
    borrowers = [
        f"{team} (weight {claims[team].rule.weight:g})"
        for team, count in held.items()
        if team != claim.team and count > claims[team].entitled
    ]
    if not borrowers:
        return has
    return f"{has}, and those to borrow are in use by {', '.join(borrowers)}"


def span(time: Time) -> str:
    """Return a length of time in words."""
    for unit, name in ((DAY, "days"), (HOUR, "h"), (60 * SECOND, "min")):
        if time >= unit and time % unit == 0:
            return f"{time // unit} {name}" if unit == DAY else f"{time // unit}{name}"
    return f"{time / SECOND:g}s"
