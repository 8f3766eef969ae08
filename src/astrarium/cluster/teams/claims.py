"""Teams claim GPUs: what is reserved for them, then what they are guaranteed, then what is left, by weight.

All of it goes by counts that jobs can use whole. What is left is dealt out step by step, a step being a GPU
or a gang: always to the team that would have borrowed least for its weight at the end of the next turn. So
teams share the GPUs where these can be divided, and take turns where gangs cannot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from astrarium.cluster.state import AppRow
from astrarium.cluster.teams import Team
from astrarium.core.quantities import Time

Counts = int  # bit n: n GPUs can be used whole


def usable_counts(rows: Iterable[AppRow], most: int) -> Counts:
    """Return all numbers of GPUs, up to *most*, that unfinished jobs of these apps could use whole."""
    counts = 1
    mask = (1 << most + 1) - 1
    kinds = Counter((job.job.least, job.job.most) for row in rows for job in row.unfinished())
    for (least, widest), count in sorted(kinds.items()):
        before = counts
        for jobs in range(1, min(count, most // least) + 1):
            counts |= _smeared(before << jobs * least & mask, jobs * (widest - least))
        counts &= mask
    return counts


def _smeared(bits: int, width: int) -> int:
    """Return every number with those up to *width* above it."""
    done = 0
    while done < width:
        step = min(done + 1, width - done)
        bits = bits | bits << step
        done = done + step
    return bits


def next_count(counts: Counts, above: int) -> int:
    """Return the smallest count above another; 0: there is none."""
    rest = counts >> above + 1
    return above + (rest & -rest).bit_length() if rest else 0


def largest_count(counts: Counts, most: int) -> int:
    return max(0, (counts & (1 << most + 1) - 1).bit_length() - 1) if most >= 0 else 0


class Tier(IntEnum):
    GUARANTEED = 0
    LENT = 1
    OVER_BUDGET = 2


class ClaimStep(NamedTuple):
    """The next number of GPUs for a team, and how soon it gets them: the smallest step comes first."""

    tier: Tier
    borrowed: float  # for its weight, at the end of the next turn
    came: Time
    team: str
    gpus: int


class Claim(NamedTuple):
    """What a team may have is found from it, anew for each decision. *gangs*: GPUs that apps need at once
    which have waited for a turn; *together*: the most that an app needs at once which has none; *within*: how
    many its budget allows (None: any), of which it has *used* so much; *borrowed*: GPU time that it has
    borrowed; *came*: when the first of its apps did that wants more."""

    team: str
    rule: Team
    counts: Counts
    reserved: int = 0
    gangs: tuple[int, ...] = ()
    together: int = 0
    within: int | None = None
    used: float = 0.0
    borrowed: float = 0.0
    came: Time = 0

    @property
    def entitled(self) -> int:
        """Return how many GPUs the team has before others borrow any."""
        gpus = self.reserved + self.rule.guaranteed
        return gpus if self.within is None else min(gpus, self.within)

    def most(self, size: int) -> int:
        """Return how many GPUs the team may have at most."""
        most = size if self.rule.borrow else self.reserved + self.rule.guaranteed
        if self.within is not None and self.rule.budget is not None and self.rule.budget.hard:
            most = min(most, self.within)
        return min(most, size)

    def wants(self, size: int) -> int:
        """Return how many GPUs its jobs could use of those that the team may have."""
        return largest_count(self.counts, self.most(size))

    def share(self, used: int, size: int) -> int:
        """Return how many GPUs the team has when its jobs use so many: those reserved are kept for it beside
        what it uses of those guaranteed."""
        return min(max(used, self.reserved + min(used, self.rule.guaranteed)), self.most(size))

    def next_step(self, used: int, left: int, size: int, turn: Time) -> ClaimStep | None:
        """Return the next step that fits into what is left; one that lets a gang run before smaller ones."""
        available = self.share(used, size) + left

        def fits(count: int) -> bool:
            return used < count <= self.most(size) and self.share(count, size) <= available

        count = next_count(self.counts, used)
        if not fits(count):
            return None
        if self._tier(count) is not Tier.GUARANTEED:
            count = next((gang for gang in self.gangs if fits(gang)), count)
        borrowed = self.borrowed + max(0, used - self.entitled) * turn
        return ClaimStep(self._tier(count), borrowed / self.rule.weight, self.came, self.team, count)

    def _tier(self, count: int) -> Tier:
        if self.within is not None and count > self.within:
            return Tier.OVER_BUDGET
        return Tier.GUARANTEED if count <= self.entitled else Tier.LENT


def divided(claims: Sequence[Claim], size: int, turn: Time) -> dict[str, int]:
    """Return how many of so many GPUs each team gets."""
    shares = {claim.team: claim.share(claim.wants(size), size) for claim in claims}
    if sum(shares.values()) <= size:
        return shares
    used = {claim.team: 0 for claim in claims}
    by_team = {claim.team: claim for claim in claims}
    left = size - sum(claim.share(0, size) for claim in claims)
    heap = [step for claim in claims if (step := claim.next_step(0, left, size, turn)) is not None]
    heapify(heap)
    while heap:
        *_, team, count = heappop(heap)
        claim = by_team[team]
        more = claim.share(count, size) - claim.share(used[team], size)
        if more <= left:
            left = left - more
            used[team] = count
        step = claim.next_step(used[team], left, size, turn)
        if step is not None:
            heappush(heap, step)
    return {team: claim.share(used[team], size) for team, claim in by_team.items()}
