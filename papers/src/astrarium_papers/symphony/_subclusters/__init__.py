"""Sub-clusters (Symphony, section 4.4 and Appendix A): which models share a part of the cluster.

Every GPU of a sub-cluster holds all of its models, and one dispatcher serves it. So the models are divided
such that load and memory are balanced, no dispatcher gets more requests than it can take, all models of a
sub-cluster fit on one GPU, and only so much moves from where it is today.

The objective is the paper's, in shares of the mean: the largest deviation of load plus `weight` times the
largest deviation of memory. Small divisions are solved to the end; large ones by swaps that start well, and
by programs over a few sub-clusters at a time. Efforts are counted, never timed: the same answer everywhere.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from astrarium.core.errors import InputError


class Member(msgspec.Struct, frozen=True):
    """A model to be divided. *today* is its sub-cluster; None: it is new, and loading it disturbs nobody.

    *load* is what is balanced, in GPU seconds a second or any other unit; None: its rate. *runtime* bytes are
    needed on top of *memory* while a batch runs: one does at a time, so the largest of a sub-cluster counts.
    """

    name: str
    rate: float
    memory: int
    load: float | None = None
    runtime: int = 0
    today: int | None = None

    @property
    def balanced_load(self) -> float:
        return self.rate if self.load is None else self.load


class Limits(msgspec.Struct, frozen=True):
    """For each sub-cluster: requests a second, and bytes of its smallest GPU. For the whole: how many models
    may move, and how large a share of all load they may be. None: any."""

    rate: float | None = None
    memory: int | None = None
    moved: int | None = None
    moved_load: float | None = None


class Effort(msgspec.Struct, frozen=True):
    """`exact`: up to so many choices (models times sub-clusters) the whole is one program. `nodes`: of a
    search tree. `rounds`: programs over a few sub-clusters. `swaps`: improvements by exchanging models."""

    exact: int = 100
    nodes: int = 5_000
    rounds: int = 6
    round_nodes: int = 50
    swaps: int = 5_000


USUAL = Effort()


class Subclusters(msgspec.Struct, frozen=True):
    """The question: models to divide into sub-clusters, and the limits."""

    members: tuple[Member, ...]
    parts: int
    limits: Limits = Limits()
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise InputError("parts", self.parts, "at least one sub-cluster")
        if not self.weight >= 0:
            raise InputError("weight", self.weight, "a weight of at least 0")
        for place, member in enumerate(self.members):
            _check_member(member, f"members[{place}]", self.parts)
        for name in ("rate", "memory", "moved", "moved_load"):
            limit = getattr(self.limits, name)
            if limit is not None and not limit >= 0:
                raise InputError(f"limits.{name}", limit, "a limit of at least 0, or none")


class Division(msgspec.Struct, frozen=True):
    """The answer: the sub-cluster of each member, in their order. An imbalance is (max - min) / mean."""

    assignment: tuple[int, ...]
    objective: float
    load_imbalance: float
    memory_imbalance: float
    moved: tuple[str, ...]
    moved_load: float  # a share of all load
    tried: int  # divisions looked at, and nodes of search trees
    optimal: bool  # proven to be the best there is


class Chance(Protocol):
    """What a random search is handed, such as a generator of numpy."""

    def integers(self, low: int, high: int, size: Any) -> Any: ...

    def permutation(self, x: Any) -> Any: ...


def divide(task: Subclusters, effort: Effort = USUAL) -> Division:
    """Return a division; InputError, with what would make it possible, where there is none."""
    from astrarium_papers.symphony._subclusters import limits, rounds
    from astrarium_papers.symphony._subclusters.figures import Figures
    from astrarium_papers.symphony._subclusters.swaps import Swaps, first_division

    limits.check_each(task)
    figures = Figures(task)
    if not task.members:
        return figures.division(figures.today, 0, True)
    swaps = Swaps(figures, first_division(figures), effort.swaps)
    swaps.run()
    if len(task.members) * task.parts <= effort.exact:
        search = rounds.whole(figures, swaps.assignment, effort.nodes)
    else:
        search = rounds.by_rounds(figures, swaps.assignment, effort)
    tried = swaps.tried + search.nodes
    if figures.allowed(search.assignment):
        return figures.division(search.assignment, tried, search.optimal)
    again = Swaps(figures, limits.rescued(figures, search.assignment, effort.nodes), effort.swaps)
    again.run()
    return figures.division(again.assignment, tried + again.tried, search.optimal)


def random_search(task: Subclusters, tries: int, chance: Chance) -> Division | None:
    """The paper's baseline: the best of so many divisions drawn by *chance*; None if none is allowed.

    Where only a few models may move, so many are moved at random: other draws would all be refused.
    """
    from astrarium_papers.symphony._subclusters.figures import Figures
    from astrarium_papers.symphony._subclusters.random_divisions import best_drawn

    figures = Figures(task)
    best = best_drawn(figures, tries, chance)
    return None if best is None else figures.division(best, tries, False)


def _check_member(member: Member, field: str, parts: int) -> None:
    for name in ("rate", "memory", "balanced_load", "runtime"):
        value = getattr(member, name)
        if not 0 <= value < float("inf"):
            raise InputError(f"{field}.{name.removeprefix('balanced_')}", value, "a number of at least 0")
    if member.today is not None and not 0 <= member.today < parts:
        raise InputError(f"{field}.today", member.today, f"one of the sub-clusters 0 to {parts - 1}, or none")
