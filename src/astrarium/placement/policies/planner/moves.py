"""Moves change a draft to help a model: another replica, fewer neighbours, another batch limit or share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from astrarium.placement.policies.planner.draft import (
    Draft,
    FitCheck,
    Site,
    SiteMember,
    placed_models,
    replicas_of,
    with_site,
)
from astrarium.placement.policies.planner.options import STEP, ModelOptions
from astrarium.placement.policies.planner.quick_simulation import DraftResult
from astrarium.placement.problem import ALONE


class Reshaping:
    """Reshaping gives a site another shape, cuts it in two, or joins it with another site.

    Models stay where they are as far as they can run there and fit, those that lose most first.
    """

    def __init__(self, options: ModelOptions) -> None:
        self._options = options
        self._fit_check = FitCheck(options.problem)
        self._shapes = {shape for model in options.problem.models for shape in model.forms}

    def __call__(self, draft: Draft, needy: Iterable[int]) -> Iterator[Draft]:
        order = {model: place for place, model in enumerate(needy)}
        homeless = order.keys() - placed_models(draft)
        for number, site in enumerate(draft):
            rest = draft[:number] + draft[number + 1 :]
            for sites in (*self._otherwise(site, order), *self._cut(site, order)):
                yield (*rest, *sites)
            for other in self._partners(draft, number):
                apart = draft[:number] + draft[number + 1 : other] + draft[other + 1 :]
                for joined in self._joined(site, draft[other], homeless, order):
                    yield (*apart, joined)

    def _partners(self, draft: Draft, number: int) -> Iterator[int]:
        """Yield later sites that a site may be joined with: the first of each memory, with its models."""
        known: set[object] = set()
        for other in range(number + 1, len(draft)):
            if self._alike(draft[number], draft[other]):
                memory = tuple(self._options.problem.gpus[gpu].memory for gpu in draft[other].gpus)
                if memory not in known:
                    known.add(memory)
                    yield other

    def _otherwise(self, site: Site, order: dict[int, int]) -> Iterator[tuple[Site, ...]]:
        for shape in sorted(self._shapes):
            if shape.gpus == site.shape.gpus and shape != site.shape:
                yield (self._filled(Site(site.gpus, shape), _models(site), order),)

    def _cut(self, site: Site, order: dict[int, int]) -> Iterator[tuple[Site, ...]]:
        half = len(site.gpus) // 2
        for shape in sorted(self._shapes):
            if half and shape.gpus * 2 == site.shape.gpus:
                parts = (Site(site.gpus[:half], shape), Site(site.gpus[half:], shape))
                yield tuple(self._filled(part, _models(site), order) for part in parts)

    def _alike(self, site: Site, other: Site) -> bool:
        gpus = [self._options.problem.gpus[gpu] for gpu in (*site.gpus, *other.gpus)]
        return site.shape == other.shape and len({gpu.node for gpu in gpus}) == 1

    def _joined(
        self, site: Site, other: Site, homeless: Collection[int], order: dict[int, int]
    ) -> Iterator[Site]:
        """Join two sites; *homeless* models may find a place there that no smaller site has."""
        for shape in sorted(self._shapes):
            if shape.gpus == 2 * site.shape.gpus:
                both = Site((*site.gpus, *other.gpus), shape)
                yield self._filled(both, _models(site) | _models(other) | set(homeless), order)

    def _filled(self, site: Site, models: set[int], order: dict[int, int]) -> Site:
        for model in sorted(models, key=lambda model: (order.get(model, len(order)), model)):
            if self._options.usable(model, site.shape):
                more = site.with_member(SiteMember(model, self._options.roomy(model, site.shape)))
                site = more if self._fit_check.holds(more) else site
        return site


def _models(site: Site) -> set[int]:
    return {member.model for member in site.members}


class Moves:
    """Moves propose changed drafts; models may take *turns* on a GPU, or run side by side (*sides*)."""

    def __init__(self, options: ModelOptions, turns: bool = True, sides: bool = True) -> None:
        self.options = options
        self.fit_check = FitCheck(options.problem)
        self.reshaped = Reshaping(options)
        self.turns = turns
        self.sides = sides

    def all_for(self, draft: Draft, model: int, result: DraftResult) -> Iterator[Draft]:
        yield from self.additions(draft, model, result)
        yield from self.batches(draft, model)
        yield from self.shares(draft, model)
        yield from self.exchanges(draft, model, result)
        yield from self.departures(draft, model, result)

    def additions(self, draft: Draft, model: int, result: DraftResult) -> Iterator[Draft]:
        """Add a replica, on the idlest sites first; of sites that are alike, only on the first."""
        known: set[object] = set()
        for number in self._idlest(draft, result):
            look = self.fit_check.look(draft[number])
            if look not in known:
                known.add(look)
                for site in self.with_model(draft[number], model):
                    yield with_site(draft, number, site)

    def with_model(self, site: Site, model: int) -> Iterator[Site]:
        if self.turns and not site.side:
            yield from self.taking_turns(site, model)
        if self.sides and site.shape == ALONE:
            beside = site if site.side or not site.members else self._divided(site)
            if beside is not None:
                yield from self._beside(beside, model)

    def taking_turns(self, site: Site, model: int) -> Iterator[Site]:
        """Add a model by turns, with the largest batch that leaves room for waiting and fits the memory."""
        sizes = self.options.usable(model, site.shape)
        if not sizes or site.hosts(model):
            return
        most = self.options.roomy(model, site.shape)
        for size in reversed([size for size in sizes if size <= most]):
            if self.fit_check.holds(joined := site.with_member(SiteMember(model, size))):
                yield joined
                return

    def _beside(self, site: Site, model: int) -> Iterator[Site]:
        """Add a model beside others, with the largest part of its load that fits."""
        for part in self.options.parts(model, site.gpus[0]):
            if part.share <= site.left and self.fit_check.holds(
                joined := site.with_member(SiteMember(model, part.batch, part.share))
            ):
                yield joined
                return

    def _divided(self, site: Site) -> Site | None:
        """Divide a site of turns: each of its models gets the smallest share that carries its load."""
        members = []
        for member in site.members:
            parts = self.options.parts(member.model, site.gpus[0])
            if not parts:
                return None
            members.append(SiteMember(member.model, parts[0].batch, parts[0].share))
        return site._replace(members=tuple(members))

    def exchanges(self, draft: Draft, model: int, result: DraftResult) -> Iterator[Draft]:
        """Put a replica in the place of another model's."""
        for number in self._idlest(draft, result):
            site = draft[number]
            for place, member in enumerate(site.members):
                if member.model != model:
                    for exchanged in self.with_model(site.without(place), model):
                        yield with_site(draft, number, exchanged)

    def departures(self, draft: Draft, model: int, result: DraftResult) -> Iterator[Draft]:
        """Move another model away from a site of the model, or the model itself."""
        for number, own in list(replicas_of(draft, model)):
            for place, member in enumerate(draft[number].members):
                left = with_site(draft, number, draft[number].without(place))
                others = [other for other in self._idlest(draft, result) if other != number][:4]
                for target in others:
                    for joined in self._joined(draft[target], member, place == own):
                        yield with_site(left, target, joined)

    def _joined(self, site: Site, member: SiteMember, itself: bool) -> Iterator[Site]:
        if site.shape == ALONE and (site.side or not site.members) and member.share < 1:
            if member.share <= site.left and self.fit_check.holds(joined := site.with_member(member)):
                yield joined
        elif not itself or not site.hosts(member.model):
            yield from self.with_model(site, member.model)

    def batches(self, draft: Draft, model: int) -> Iterator[Draft]:
        """Try the next larger and the next smaller batch limit for all replicas of the model."""
        for step in (1, -1):
            changed = draft
            for number, place in list(replicas_of(draft, model)):
                changed = self._other_batch(changed, number, place, step)
            if changed != draft:
                yield changed

    def _other_batch(self, draft: Draft, number: int, place: int, step: int) -> Draft:
        site = draft[number]
        member = site.members[place]
        sizes = self.options.usable(member.model, site.shape)
        at = sizes.index(member.batch) + step
        if not 0 <= at < len(sizes):
            return draft
        other = site.changed(place, member._replace(batch=sizes[at]))
        return with_site(draft, number, other) if self.fits(other) else draft

    def fits(self, site: Site) -> bool:
        """Whether a site has memory and shares for its models, and each is in time if alone."""
        models = self.options.problem.models
        gpu = site.gpus[0]
        return self.fit_check.holds(site) and all(
            self.options.time(member.model, gpu, member.batch, member.share) <= models[member.model].slo
            for member in site.members
            if site.shape == ALONE
        )

    def shares(self, draft: Draft, model: int) -> Iterator[Draft]:
        """Give the model a larger share: of what no model has, or at the cost of a neighbour."""
        for number, place in list(replicas_of(draft, model)):
            site = draft[number]
            if not site.side:
                continue
            own = site.members[place]
            more = site.changed(place, own._replace(share=round(own.share + STEP, 9)))
            yield from (with_site(draft, number, changed) for changed in (more,) if self.fits(changed))
            for other, member in enumerate(site.members):
                if other != place and member.share > 1.5 * STEP:
                    less = more.changed(other, member._replace(share=round(member.share - STEP, 9)))
                    yield from (
                        with_site(draft, number, changed) for changed in (less,) if self.fits(changed)
                    )

    def _idlest(self, draft: Draft, result: DraftResult) -> list[int]:
        loads = [result.work[number] / site.shape.gpus for number, site in enumerate(draft)]
        return sorted(range(len(draft)), key=lambda number: (loads[number], number))
