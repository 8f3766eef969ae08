"""GPUs change queues: free ones at once, and those that are leased when they may be taken.

- For a team that is entitled to them, or a higher priority of the same team: after `min_run`.
- For a team that borrows: also not before the team that has them has held them for a turn.
- For a reservation, or where a budget that is hard is used up: at once.

Only as many are taken as are put to use, of the lowest priority first and then of who came last; and nothing
that runs is stopped for a gang before all of the gang's GPUs can be had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from astrarium.cluster.arrange import closest
from astrarium.cluster.contract import Revoke
from astrarium.cluster.demand import idle_first, wanted
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.teams import Rules, words
from astrarium.cluster.teams.claims import Claim, largest_count
from astrarium.cluster.teams.holdings import Holdings, QueueKey
from astrarium.core.quantities import FOREVER, Time

Taken = list[tuple[AppRow, tuple[int, ...]]]  # GPUs, and whose they are


@dataclass(frozen=True)
class Moves:
    """It turns targets into grants and revocations, for one decision. *targets*: how many GPUs each queue
    should have; *counts*: how many it could use; *standing*: GPUs whose leases have just ended, with the apps
    whose jobs still stand there."""

    now: Time
    rules: Rules
    holdings: Holdings
    claims: Mapping[str, Claim]
    targets: Mapping[QueueKey, int]
    counts: Mapping[QueueKey, int]
    standing: Mapping[int, AppRow]
    state: ClusterState

    def all(self) -> Iterator[Revoke]:
        for team in self.claims:
            yield from self._excess(team)
        for key in sorted(self.targets, key=lambda key: (not self._due(key), -key.priority, key.team)):
            due = self._due(key)
            yield from self._filled(key, min(due, self._missing(key)), entitled=True)
            yield from self._filled(key, self._missing(key), entitled=False)
        self._leave_the_rest()

    def next_chance(self) -> Time:
        """Return when a GPU can be taken next that a queue waits for; FOREVER where none waits."""
        if not any(self._missing(key) > 0 for key in self.targets):
            return FOREVER
        chance = FOREVER
        for row in self.holdings.newest_first(self._donors(None), self.state):
            for gpu in row.leases:
                tenure = self.holdings.tenures[gpu]
                instants = (tenure.since + row.app.min_run, tenure.team_since + self.rules.turn)
                chance = min([chance, *(at for at in instants if at > self.now)])
        return chance

    def _missing(self, key: QueueKey) -> int:
        return self.targets[key] - len(self.holdings.queues[key])

    def _due(self, key: QueueKey) -> int:
        """Return how many GPUs a queue lacks that its team is entitled to."""
        share = sum(self.targets[own] for own in self.holdings.of(key.team))
        lacks = min(share, self.claims[key.team].entitled) - self.holdings.count(key.team)
        return max(0, min(lacks, self._missing(key)))

    def _excess(self, team: str) -> Iterator[Revoke]:
        """Take back what a team has beyond what it may have."""
        holdings = self.holdings
        claim = self.claims[team]
        excess = holdings.count(team) - claim.most(self.state.floor.size)
        for key in reversed(holdings.of(team)) if excess > 0 else ():
            free = sorted(holdings.queues[key] & self.state.free, key=self._disturbs)[:excess]
            holdings.move(free, None)
            excess -= len(free)
        for row in holdings.newest_first(holdings.of(team), self.state) if excess > 0 else ():
            gone = idle_first(row)[:excess]
            if gone:
                holdings.move(gone, None)
                excess -= len(gone)
                yield Revoke(row.app.id, gone, words.taken_beyond(claim))

    def _disturbs(self, gpu: int) -> tuple[bool, int]:
        return gpu in self.standing, gpu

    def _filled(self, key: QueueKey, missing: int, entitled: bool) -> Iterator[Revoke]:
        """Give a queue GPUs that it lacks: free ones, and then those of others."""
        if missing <= 0:
            return
        holdings = self.holdings
        near = [gpu for gpu in holdings.queues[key] if gpu in self.state.holder]
        free = self._free(key, entitled)
        if free:
            cold = [gpu for gpu in free if gpu not in self.standing]  # where nobody is disturbed
            chosen = cold if len(cold) >= missing else free
            gpus = closest(sorted(chosen), min(missing, len(chosen)), self.state.floor, near)
            holdings.move(gpus, key)
            missing -= len(gpus)
        taken = self._taken(key, missing, entitled) if missing else []
        for row, gone in taken:
            why = words.taken(self.claims, self.holdings.keys[row.app.id], key, entitled, self._waits(key))
            holdings.move(gone, key)
            yield Revoke(row.app.id, gone, why)

    def _free(self, key: QueueKey, entitled: bool) -> list[int]:
        """Return free GPUs that a queue may have: those of nobody, and what others have too many of."""
        holdings = self.holdings
        state = self.state
        gpus_free = list(state.free.difference(*holdings.queues.values()))
        for donor, surplus in self._donors(key).items():
            free = sorted(holdings.queues[donor] & state.free)
            own = [gpu for gpu in free if self._may_leave(gpu, key, entitled)]
            gpus_free += closest(own, min(surplus, len(own)), state.floor) if own else ()
        return gpus_free

    def _may_leave(self, gpu: int, key: QueueKey, entitled: bool) -> bool:
        row = self.standing.get(gpu)
        return row is None or self._may_take(gpu, row, key, entitled)

    def _donors(self, key: QueueKey | None) -> dict[QueueKey, int]:
        """Return the other queues that have more than they should, with how many."""
        surpluses = {own: -self._missing(own) for own in self.targets if own != key}
        return {own: surplus for own, surplus in surpluses.items() if surplus > 0}

    def _borrowers(self, key: QueueKey) -> dict[QueueKey, int]:
        """Return the queues of other teams that have borrowed, with how many GPUs."""
        borrowed: dict[QueueKey, int] = {}
        for team in self.claims:
            lent = self.holdings.count(team) - self.claims[team].entitled
            for own in reversed(self.holdings.of(team)) if team != key.team else ():
                borrowed[own] = max(0, min(lent, len(self.holdings.queues[own])))
                lent -= borrowed[own]
        return borrowed

    def _taken(self, key: QueueKey, missing: int, entitled: bool) -> Taken:
        """Return whose GPUs a queue takes: as many of those that may be taken as it could use. Who is
        entitled to them takes them from any borrower, where those with too many may keep theirs."""
        taken = Taken()
        gone = set[int]()
        for donors in (self._donors(key), self._borrowers(key) if entitled else {}):
            surplus = {own: count - len(gone & self.holdings.queues[own]) for own, count in donors.items()}
            for row in self.holdings.newest_first(surplus, self.state):
                donor = self.holdings.keys[row.app.id]
                free = [gpu for gpu in idle_first(row) if self._may_take(gpu, row, key, entitled)]
                gpus = tuple(gpu for gpu in free if gpu not in gone)
                gpus = gpus[: max(0, min(surplus[donor], missing - len(gone)))]
                if gpus:
                    taken.append((row, gpus))
                    surplus[donor] -= len(gpus)
                    gone.update(gpus)
        total = len(gone)
        return _first(taken, total if self._urgent(key, entitled) else self._useful(key, total))

    def _useful(self, key: QueueKey, more: int) -> int:
        """Return how many of so many further GPUs a queue could use."""
        has = len(self.holdings.queues[key])
        return max(0, largest_count(self.counts[key], has + more) - has)

    def _urgent(self, key: QueueKey, entitled: bool) -> bool:
        return entitled and self.claims[key.team].reserved > 0

    def _may_take(self, gpu: int, row: AppRow, key: QueueKey, entitled: bool) -> bool:
        tenure = self.holdings.tenures.get(gpu)
        team = self.holdings.keys[row.app.id].team
        runs = any(gpu in job.gpus for job in row.jobs.values())
        if tenure is None or not runs or self._urgent(key, entitled):
            return True
        if self.now - tenure.since < row.app.min_run:
            return False
        return entitled or team == key.team or self.now - tenure.team_since >= self.rules.turn

    def _waits(self, key: QueueKey) -> str:
        rows = self.holdings.rows(key, self.state).values()
        return next((row.app.name for row in rows if wanted(row)), "")

    def _leave_the_rest(self) -> None:
        """Let GPUs that nobody wants lie in a queue that may have them: those with apps first."""
        holdings = self.holdings
        size = self.state.floor.size
        waiting = {holdings.keys[app] for app in self.state.apps}
        for key in sorted(self.targets, key=lambda key: key not in waiting):
            loose = self.state.free.difference(*holdings.queues.values())
            allowed = self.claims[key.team].most(size) - holdings.count(key.team)
            if loose and allowed > 0:
                holdings.move(sorted(loose)[:allowed], key)


def _first(taken: Taken, count: int) -> Taken:
    """Return so many of the GPUs that were gpus_free."""
    kept = Taken()
    for row, gpus in taken:
        if count > 0:
            kept.append((row, gpus[:count]))
            count -= len(gpus)
    return kept
