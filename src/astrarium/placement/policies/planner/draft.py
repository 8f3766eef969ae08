"""A draft is a plan in the making: sites, which are GPUs or groups of them, and the models on each.

Models of a site take turns on all of it; or, on a single GPU, they run side by side on shares of it. Models
and GPUs go by their places in the problem here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from astrarium.placement.plan import ROUNDING, Replica
from astrarium.placement.problem import ALONE, Problem, Shape


class SiteMember(NamedTuple):
    model: int
    batch: int
    share: float = 1.0


class Site(NamedTuple):
    gpus: tuple[int, ...]
    shape: Shape = ALONE
    members: tuple[SiteMember, ...] = ()

    @property
    def side(self) -> bool:
        """Whether its models run side by side."""
        return any(member.share < 1 for member in self.members)

    @property
    def left(self) -> float:
        """Return the share that no model has."""
        return 1.0 - sum(member.share for member in self.members)

    def hosts(self, model: int) -> bool:
        return any(member.model == model for member in self.members)

    def with_member(self, member: SiteMember) -> Site:
        return self._replace(members=(*self.members, member))

    def without(self, place: int) -> Site:
        return self._replace(members=self.members[:place] + self.members[place + 1 :])

    def changed(self, place: int, member: SiteMember) -> Site:
        return self._replace(members=(*self.members[:place], member, *self.members[place + 1 :]))


Draft = tuple[Site, ...]


def empty(problem: Problem) -> Draft:
    """Return the draft in which every GPU is a site of its own, without models."""
    return tuple(Site((place,)) for place in range(len(problem.gpus)))


def with_site(draft: Draft, place: int, site: Site) -> Draft:
    return (*draft[:place], site, *draft[place + 1 :])


def replicas_of(draft: Draft, model: int) -> Iterator[tuple[int, int]]:
    """Yield the replicas of a model: numbers of sites, and places on them."""
    for number, site in enumerate(draft):
        for place, member in enumerate(site.members):
            if member.model == model:
                yield number, place


def placed_models(draft: Draft) -> set[int]:
    return {member.model for site in draft for member in site.members}


def without_model(draft: Draft, model: int) -> Draft:
    return tuple(
        site._replace(members=tuple(member for member in site.members if member.model != model))
        for site in draft
    )


class FitCheck:
    """A fit check tells whether models fit on a site: memory of every GPU, shares, one way of sharing."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def holds(self, site: Site) -> bool:
        shares = not site.side or (site.shape == ALONE and site.left >= -ROUNDING)
        return shares and self._memory(site)

    def _memory(self, site: Site) -> bool:
        width = site.shape.operators
        for stage in range(site.shape.stages):
            there = min(self._problem.gpus[gpu].memory for gpu in site.gpus[stage * width :][:width])
            if sum(self._bytes(site, member, stage) for member in site.members) > there:
                return False
        return True

    def _bytes(self, site: Site, member: SiteMember, stage: int) -> int:
        return self._problem.models[member.model].forms[site.shape].memory(stage, member.batch)

    def look(self, site: Site) -> tuple[object, ...]:
        """Return a key that sites have in common if they are alike."""
        gpus = (self._problem.gpus[gpu] for gpu in site.gpus)
        return site.shape, site.members, tuple((gpu.memory, gpu.kind, gpu.igniter is None) for gpu in gpus)


def replicas(problem: Problem, draft: Iterable[Site]) -> tuple[Replica, ...]:
    """Return the replicas of a draft, not explained yet."""
    return tuple(
        Replica(
            problem.models[member.model].index,
            tuple(problem.gpus[gpu].id for gpu in site.gpus),
            site.shape,
            member.batch,
            round(member.share, 9),
        )
        for site in draft
        for member in site.members
    )
