"""When somebody can expect GPUs, from what is known now: in order of the line, each takes the GPUs that are
free first and keeps them to its end, which is as far away as its owner says. Who would be pressed before that
is served by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from astrarium.cluster.demand import usable, wanted
from astrarium.cluster.policies._astrarium_line import Ranked
from astrarium.cluster.state import ClusterState
from astrarium.core.units import Time


def starts(now: Time, line: Sequence[Ranked], state: ClusterState, lease: Time) -> dict[int, Time]:
    """Of those who want GPUs. *lease*: it takes as long at most until GPUs are free for who is pressed."""
    free_at: list[tuple[float, int]] = [(float(now), state.floor.size)]  # when, how many
    found: dict[int, Time] = {}
    for each in line:
        row, has = each.prospect.row, len(each.prospect.row.leases)
        count = has or usable(row, state.floor.size)
        if not count:  # a gang that is larger than the cluster
            continue
        start = _taken(free_at, count)
        if wanted(row):
            expected = start if not has else min(free_at, default=(start, 0))[0]
            found[row.app.id] = round(min(expected, now + max(0.0, each.slack) + lease))
        heappush(free_at, (start + max(each.prospect.span, each.prospect.left / count), count))
    return found


def _taken(free_at: list[tuple[float, int]], count: int) -> float:
    """So many are taken from the heap; when the last of them is free."""
    at = 0.0
    while count:
        at, there = heappop(free_at)
        if there > count:
            heappush(free_at, (at, there - count))
        count -= min(count, there)
    return at
