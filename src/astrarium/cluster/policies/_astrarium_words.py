"""What our own policy says of its decisions: why these GPUs, why not yet, and with which numbers."""

from __future__ import annotations

from astrarium.cluster.policies._astrarium_line import Ranked, Reason
from astrarium.core.units import SECOND, Time

SPARE = "it has no use for them any more"
GOES_ON = "it goes on: nobody who waits comes before it"
CLOSER = "its GPUs lie closer together there, which gains more than the move costs"
HOUR = 3600 * SECOND


def why_given(ranked: Ranked, bound: float) -> str:
    each = ranked.prospect
    if ranked.reason is Reason.FAIRNESS:
        within = about(max(0.0, each.span + ranked.slack))
        return (
            f"it needs {about(each.span)} at best and has {within} "
            f"to keep its rho at {bound:.2f}, which all are held to"
        )
    if ranked.reason is Reason.TAIL:
        return f"it still takes {about(each.span)}: if it waited, all would wait for it in the end"
    return f"it has the least left of those who can wait and fit: {hours(each.left)}"


def why_taken(victim: Ranked, winner: Ranked | None) -> str:
    each = victim.prospect
    loses = f"stopping it loses {hours(each.loss)}"
    if winner is None:
        return f"others come before it; {loses}"
    first = winner.prospect
    name, left = first.row.app.name, hours(first.left)
    if winner.reason is Reason.FAIRNESS:
        return f"{name} cannot wait any longer, and this one can; {loses}"
    if winner.reason is Reason.TAIL:
        return f"{name} is the longest of all, which would wait for it in the end; {loses}"
    return f"{name} has only {left} left, this one {hours(each.left)}; {loses}"


def standing(ranked: Ranked, bound: float, now: Time) -> str:
    """Of one who wants more GPUs than it has."""
    each = ranked.prospect
    left = f"{hours(each.left)} left"
    if ranked.reason is Reason.FAIRNESS:
        return f"pressed: {left}, for a rho of {bound:.2f} it has to run now"
    until = about(now + ranked.slack)
    kind = "long: all would wait for it in the end, " if ranked.reason is Reason.TAIL else ""
    return f"{kind}{left}; for a rho of {bound:.2f} it can wait until {until}"


def hours(gpu_time: float) -> str:
    """In GPU-hours."""
    found = gpu_time / HOUR
    return f"{found:.1f} GPU-hours" if found >= 0.1 else f"{gpu_time / SECOND:.0f} GPU seconds"


def about(time: float) -> str:
    """With as many digits as anybody wants of a guess."""
    for unit, name in ((HOUR, "h"), (60 * SECOND, "min")):
        if time >= 2 * unit:
            return f"{time / unit:.3g}{name}"
    return f"{time / SECOND:.3g}s"
