"""Our own policy explains its decisions: why these GPUs, why not yet, and with which numbers."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush

from astrarium.cluster.demand import soonest, usable, wanted
from astrarium.cluster.policies.astrarium.queue import RankedApp, Reason
from astrarium.cluster.state import ClusterState
from astrarium.core.quantities import SECOND, Time


def starts(now: Time, ranked: Sequence[RankedApp], state: ClusterState, lease: Time) -> dict[int, Time]:
    """Return when each app that wants GPUs can expect some, from what is known now. In order of the queue,
    each takes the GPUs that are free first and keeps them to its end, which is as far away as its owner says.
    An app that would be pressed before that is served by then: it takes a *lease* at most until GPUs are free
    for it."""
    free_at: list[tuple[float, int]] = [(float(now), state.floor.size)]  # when, how many
    expectations: dict[int, Time] = {}
    for one in ranked:
        row = one.prospect.row
        has = len(one.prospect.row.leases)
        count = has or usable(row, state.floor.size)
        start = soonest(free_at, count) if count else None
        if start is None:  # a gang that is larger than the cluster
            continue
        if wanted(row):
            expected = start if not has else min(free_at, default=(start, 0))[0]
            expectations[row.app.id] = round(min(expected, now + max(0.0, one.slack) + lease))
        heappush(free_at, (start + max(one.prospect.span, one.prospect.left / count), count))
    return expectations


GOES_ON = "it goes on: nobody who waits comes before it"
CLOSER = "its GPUs lie closer together there, which gains more than the move costs"
MAKES_ROOM = "a job of one GPU changes places with one whose GPUs then lie closer together"
HOUR = 3600 * SECOND


def why_given(ranked: RankedApp, bound: float) -> str:
    prospect = ranked.prospect
    if ranked.reason is Reason.FAIRNESS:
        within = about(max(0.0, prospect.span + ranked.slack))
        return (
            f"it needs {about(prospect.span)} at best and has {within} "
            f"to keep its rho at {bound:.2f}, which all are held to"
        )
    if ranked.reason is Reason.TIGHT:
        return (
            f"all can keep a rho of {bound:.2f} only together, and it can wait least: {about(ranked.slack)}"
        )
    if ranked.reason is Reason.TAIL:
        return f"it still takes {about(prospect.span)}: if it waited, all would wait for it in the end"
    return f"it has the least left of those who can wait and fit: {hours(prospect.left)}"


def why_taken(victim: RankedApp, winner: RankedApp | None) -> str:
    prospect = victim.prospect
    loses = f"stopping it loses {hours(prospect.loss)}"
    if winner is None:
        return f"others come before it; {loses}"
    first = winner.prospect
    name = first.row.app.name
    left = hours(first.left)
    if winner.reason is Reason.FAIRNESS:
        return f"{name} cannot wait any longer, and this one can; {loses}"
    if winner.reason is Reason.TIGHT:
        return f"{name} can wait {about(winner.slack)}, this one {about(max(0.0, victim.slack))}; {loses}"
    if winner.reason is Reason.TAIL:
        return f"{name} is the longest of all, which would wait for it in the end; {loses}"
    if first.left >= prospect.left:  # later in line, but these GPUs lie apart from the victim's others
        return f"they bring it less than they bring {name}, which waits; {loses}"
    return f"{name} has only {left} left, this one {hours(prospect.left)}; {loses}"


def standing(ranked: RankedApp, bound: float, now: Time, before: str) -> str:
    """Return in words where an app stands that wants GPUs; *before*: the first of the same apps."""
    prospect = ranked.prospect
    left = f"{hours(prospect.left)} left"
    if before != prospect.row.app.name:
        left += f"; {before} is the same and came before it"
    if ranked.reason is Reason.FAIRNESS:
        return f"pressed: {left}, for a rho of {bound:.2f} it has to run now"
    until = about(now + ranked.slack)
    kind = "long: all would wait for it in the end, " if ranked.reason is Reason.TAIL else ""
    return f"{kind}{left}; for a rho of {bound:.2f} it can wait until {until}"


def hours(gpu_time: float) -> str:
    """Return GPU time in words, in GPU-hours."""
    gpu_hours = gpu_time / HOUR
    return f"{gpu_hours:.1f} GPU-hours" if gpu_hours >= 0.1 else f"{gpu_time / SECOND:.0f} GPU seconds"


def about(time: float) -> str:
    """Return a time in words, with as many digits as anybody wants of a guess."""
    for unit, name in ((HOUR, "h"), (60 * SECOND, "min")):
        if time >= 2 * unit:
            return f"{time / unit:.3g}{name}"
    return f"{time / SECOND:.3g}s"
