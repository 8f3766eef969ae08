"""How many GPUs an app could use: whole gangs, and more for those that can grow."""

from __future__ import annotations

from astrarium.cluster.state import AppRow, JobRow

# How many more GPUs an app would put to use, as `arrange` hands them to its jobs: what runs goes on, then
# whole gangs that wait, in order, and then growth.


class Appetite:
    """Of one app, as it stands: what its jobs would make of any number of GPUs."""

    def __init__(self, row: AppRow) -> None:
        self.has = len(row.leases)
        self._running, self._room = 0, 0
        self._gangs: list[list[int]] = []  # that wait: least, most, how many such follow each other
        for each in row.jobs.values():
            if not each.finished:
                self._add(each, _kept(row, each))

    def _add(self, each: JobRow, running: int) -> None:
        least, most = each.job.least, each.job.most
        if running:
            self._running, self._room = self._running + running, self._room + most - running
        elif self._gangs and self._gangs[-1][:2] == [least, most]:
            self._gangs[-1][2] += 1
        else:
            self._gangs.append([least, most, 1])

    def in_use(self, gpus: int) -> int:
        """Of so many GPUs of the app: those that its jobs would run on."""
        left, room = gpus - self._running, self._room
        for least, most, count in self._gangs:
            started = min(count, max(0, left) // least)
            left, room = left - started * least, room + started * (most - least)
        return gpus - max(0, left - room)

    def more(self, offered: int) -> int:
        """Of so many that it is offered beyond those it has."""
        return max(0, self.in_use(self.has + offered) - self.has)

    def step(self, given: int, offered: int) -> int:
        """The fewest more that it would use beyond those it has and was *given*: one, or a gang. 0: none."""
        for step in sorted({1, *(least for least, _, _ in self._gangs)}):
            if step <= offered and self.more(given + step) == given + step:
                return step
        return 0


def more(row: AppRow, offered: int) -> int:
    return Appetite(row).more(offered)


def spare(row: AppRow) -> tuple[int, ...]:
    """GPUs it has a lease for and no use any more: those first that nothing runs on."""
    count = len(row.leases) - Appetite(row).in_use(len(row.leases))
    if count <= 0:
        return ()
    busy = {gpu for each in row.jobs.values() if _kept(row, each) for gpu in each.gpus}
    return tuple(sorted(row.leases.keys() - busy))[:count]


def stood(row: AppRow) -> list[int]:
    """GPUs that its jobs run on and whose lease has just expired."""
    return [gpu for each in row.jobs.values() for gpu in each.gpus if gpu not in row.leases]


def _kept(row: AppRow, each: JobRow) -> int:
    """GPUs that a job goes on running on: none where its gang has lost a part."""
    if not each.gpus:
        return 0
    running = sum(gpu in row.leases for gpu in each.gpus)
    return running if running >= each.job.least else 0


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
