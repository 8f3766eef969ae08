"""How many GPUs an app could use: whole gangs, and more for those that can grow."""

from __future__ import annotations

from astrarium.cluster.ledger import AppRow


def most(row: AppRow) -> int:
    """All of its jobs of this phase at their largest."""
    if len(row.jobs) == 1:  # as most apps are: asked again and again, it must be cheap
        (only,) = row.jobs.values()
        return 0 if only.finished else only.job.most
    return sum(job.job.most for job in row.unfinished())


def wanted(row: AppRow) -> int:
    """Beyond what it has."""
    return max(0, most(row) - len(row.leases))


def usable(row: AppRow, offered: int) -> int:
    """Of so many GPUs, how many its jobs could take: as many gangs as fit, in order, and then growth."""
    if len(row.jobs) == 1:
        (only,) = row.jobs.values()
        return min(offered, only.job.most) if only.job.least <= offered and not only.finished else 0
    left, grown = offered, 0
    for each in row.jobs.values():
        if not each.finished and each.job.least <= left:
            left -= each.job.least
            grown += each.job.most - each.job.least
    return offered - left + min(left, grown)


def step(row: AppRow, has: int, offered: int) -> int:
    """The fewest GPUs that it could use beyond those that it has: one, or the smallest gang that waits."""
    whole = usable(row, has + offered) - has
    if whole <= 1:
        return max(0, whole)
    sizes = {1, *(job.job.least for job in row.unfinished())}
    fitting = (size for size in sorted(sizes) if size <= whole and usable(row, has + size) >= has + size)
    return next(fitting, whole)
