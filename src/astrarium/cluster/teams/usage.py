"""What teams have used is remembered, and forgotten little by little (exponential decay).

GPU time fades with a time constant: what lies so far back counts 1/e. Slurm's multifactor priority forgets
usage in the same way, with a half-life.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, expm1, inf, log

from astrarium.cluster.teams import Budget, Rules
from astrarium.core.quantities import FOREVER, Time

HAIR = 1e-9  # of a GPU


@dataclass
class FadingUsage:
    """GPU time that is forgotten with the time constant *fade*."""

    fade: float
    total: float = 0.0

    def add(self, gpus: int, took: Time) -> None:
        """Let time pass in which so many GPUs were used."""
        faded = -expm1(-took / self.fade)
        self.total += (gpus * self.fade - self.total) * faded

    def reaches(self, level: float, gpus: int) -> float:
        """Return how long it takes until the total is at a level, with so many GPUs in use; infinity: it
        never is. At a level that it has it is at once."""
        end = gpus * self.fade  # where the total goes in the long run
        if (level - self.total) * (end - level) <= 0 and level != self.total:
            return inf
        return self.fade * log((end - self.total) / (end - level)) if level != self.total else 0.0


@dataclass
class Account:
    """What a team holds, what it has used of its budget, and what it has borrowed."""

    borrowed: FadingUsage
    used: FadingUsage | None
    held: int = 0
    lent_to: int = 0  # of those held, how many are beyond what it is entitled to

    def pass_time(self, took: Time) -> None:
        self.borrowed.add(self.lent_to, took)
        if self.used is not None:
            self.used.add(self.held, took)

    def within(self, budget: Budget | None, turn: Time) -> int | None:
        """Return how many GPUs the budget allows: those that the team has, or as many as it could hold for a
        turn. None: any number."""
        if budget is None or self.used is None:
            return None
        left = budget.limit - self.used.total
        return max(self.held, int(left / turn + HAIR)) if left > 0 else 0

    def next_change(self, now: Time, budget: Budget | None, step: int, turn: Time) -> Time:
        """Return when the budget is used up, or, if it is, when it allows *step* GPUs for a turn again."""
        if budget is None or self.used is None:
            return FOREVER
        used_up = self.used.total >= budget.limit
        if not used_up and self.held:
            return _later(now, self.used.reaches(budget.limit, self.held))
        left = budget.limit - max(1, step) * turn
        return _later(now, self.used.reaches(left, self.held)) if self.used.total > left > 0 else FOREVER


@dataclass
class Accounts:
    """The accounts of all teams, up to an instant."""

    at: Time = 0
    by_team: dict[str, Account] = field(default_factory=dict)

    def of(self, team: str, rules: Rules) -> Account:
        """Return the account of a team, as the rules that hold now want it."""
        account = self.by_team.get(team)
        budget = rules.rule(team).budget
        if account is None:
            account = self.by_team[team] = Account(FadingUsage(1.0), None)
        account.borrowed.fade = rules.half_life / log(2)
        if budget is None:
            account.used = None
        elif account.used is None:
            account.used = FadingUsage(float(budget.over))
        else:
            account.used.fade = float(budget.over)
        return account

    def pass_time(self, now: Time) -> None:
        for account in self.by_team.values():
            account.pass_time(now - self.at)
        self.at = now


def _later(now: Time, took: float) -> Time:
    return FOREVER if took >= FOREVER - now else now + max(1, ceil(took))
