"""The explainer makes a plan of a draft, and says why each replica is there and what missing models lack."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from astrarium.core.quantities import gib, rounded_duration, to_ms
from astrarium.placement.plan import Plan
from astrarium.placement.policies.planner.draft import (
    Draft,
    FitCheck,
    Site,
    SiteMember,
    placed_models,
    replicas,
    replicas_of,
    with_site,
)
from astrarium.placement.policies.planner.finishing import EDGE, busiest
from astrarium.placement.policies.planner.options import ModelOptions, gpus_needed
from astrarium.placement.policies.planner.quick_simulation import QuickSimulation
from astrarium.placement.problem import ALONE, PlacedModel, Shape

NAME = "planner"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
COUNTS = ("none", "one", "two", "three", "four", "five", "six")


class DraftExplainer:
    def __init__(self, options: ModelOptions) -> None:
        self._options = options
        self._problem = options.problem

    def plan(self, draft: Draft, attainment: float | None, simulation: QuickSimulation | None = None) -> Plan:
        """Return the plan of a draft; with a *simulation*, each further replica says what it adds."""
        placed = replicas(self._problem, draft)
        whys = self._whys(draft, simulation)
        explained = tuple(
            msgspec.structs.replace(replica, why=why) for replica, why in zip(placed, whys, strict=True)
        )
        return Plan(NAME, explained, self._missing(draft), attainment)

    def _whys(self, draft: Draft, simulation: QuickSimulation | None) -> list[str]:
        reasons = {}
        for model in placed_models(draft):
            where = list(replicas_of(draft, model))
            for count, at in enumerate(where):
                reasons[at] = self._reason(draft, model, where, count, simulation)
        return [
            f"{reasons[number, place]}; {self._way(site, place)}"
            for number, site in enumerate(draft)
            for place in range(len(site.members))
        ]

    def _reason(
        self,
        draft: Draft,
        model: int,
        where: list[tuple[int, int]],
        count: int,
        simulation: QuickSimulation | None,
    ) -> str:
        placed = self._problem.models[model]
        load = f"{placed.rate:g}/s within {to_ms(placed.slo):g} ms"
        which = f"{_word(ORDINALS, count, 'replica {}')}{' replica' if count < len(ORDINALS) else ''}"
        if not count:
            return f"first of {len(where)} replicas for {load}" if len(where) > 1 else f"for {load}"
        if simulation is None:
            return f"{which} for {load}"
        purpose = self._purpose(draft, _without(draft, where[count:]), model, count, simulation)
        return f"{which}{purpose} of {load}"

    def _purpose(
        self, draft: Draft, fewer: Draft, model: int, count: int, simulation: QuickSimulation
    ) -> str:
        """Say what the other replicas lacked without this one, or what it leaves for more load."""
        served = simulation.served(fewer, model)
        alone = f": {_word(COUNTS, count, '{}')} alone served {_part(served)}"
        if served < simulation.served(draft, model):
            return alone
        busy = busiest(self._options, fewer, model)
        return f", for growth{alone}, {min(busy, 9.99):.0%} busy," if busy > EDGE else f", to spare{alone}"

    def _way(self, site: Site, place: int) -> str:
        member = site.members[place]
        names = [self._problem.models[tenant.model].name for tenant in site.members]
        others = ", ".join(names[:place] + names[place + 1 :])
        took = self._took(site, place)
        batches = (
            f"batches of up to {member.batch} take {took:.1f} ms"
            if member.batch > 1
            else f"takes {took:.1f} ms"
        )
        if site.side:
            return f"{batches} on {100 * member.share:g} % of the GPU" + (
                f", beside {others}" if others else ""
            )
        where = "" if site.shape == ALONE else f" on {site.shape.gpus} GPUs ({site.shape})"
        return f"{batches}{where}, " + (f"by turns with {others}" if others else "without company")

    def _took(self, site: Site, place: int) -> float:
        model, batch, share = site.members[place]
        if site.shape == ALONE:
            return to_ms(self._options.time(model, site.gpus[0], batch, share))
        return to_ms(self._problem.models[model].forms[site.shape].latency(batch))

    def _missing(self, draft: Draft) -> dict[int, str]:
        placed = placed_models(draft)
        return {
            model.index: self._lacks(place, model, draft)
            for place, model in enumerate(self._problem.models)
            if place not in placed
        }

    def _lacks(self, place: int, model: PlacedModel, draft: Draft) -> str:
        if not model.forms:
            return "a form: none of it is known"
        shapes = self._options.shapes(place)
        if not shapes:
            fastest = min(form.latency(1) for form in model.forms.values())
            alone = rounded_duration(fastest, 4)
            wanted = rounded_duration(model.slo, 4)
            return f"an objective of {alone}, which one request takes: not {wanted}"
        if not self._problem.gpus:
            return "a GPU: there is none"
        if not any(self._fits_somewhere(place, shape) for shape in shapes):
            return self._memory(model, shapes)
        if not any(self._has_memory(place, site) for site in draft):
            return f"{self._memory(model, shapes)} beside the others, which have it; or fewer of them"
        needed = gpus_needed(self._options)
        there = len(self._problem.gpus)
        return f"time: all models keep {needed:.1f} GPUs busy, {there} are there, others' requests need them"

    def _has_memory(self, place: int, site: Site) -> bool:
        sizes = self._options.usable(place, site.shape)
        by_turns = site._replace(members=tuple(member._replace(share=1.0) for member in site.members))
        return bool(sizes) and FitCheck(self._problem).holds(
            by_turns.with_member(SiteMember(place, sizes[0]))
        )

    def _memory(self, model: PlacedModel, shapes: list[Shape]) -> str:
        def largest(shape: Shape) -> int:
            return max(model.forms[shape].memory(stage, 1) for stage in range(shape.stages))

        least = min(shapes, key=lambda shape: (largest(shape), shape))
        where = "a GPU" if least.gpus == 1 else f"each of {least.gpus} GPUs of a node"
        return f"{gib(largest(least))} on {where}"

    def _fits_somewhere(self, place: int, shape: Shape) -> bool:
        """Whether a model fits alone on the GPUs of a node with the most memory."""
        return any(FitCheck(self._problem).holds(site) for site in self._largest_sites(place, shape))

    def _largest_sites(self, place: int, shape: Shape) -> Iterator[Site]:
        gpus = self._problem.gpus
        for node in sorted({gpu.node for gpu in gpus}):
            own = sorted((-gpu.memory, number) for number, gpu in enumerate(gpus) if gpu.node == node)
            if len(own) >= shape.gpus:
                chosen = tuple(number for _, number in own[: shape.gpus])
                yield Site(chosen, shape, (SiteMember(place, self._options.usable(place, shape)[0]),))


def _part(served: float) -> str:
    """Return a part of requests as text, never rounded up to all."""
    return f"{served:.2f}" if served < 0.99 else f"{math.floor(served * 10_000) / 10_000:.4f}"


def _word(explainer: tuple[str, ...], number: int, otherwise: str) -> str:
    return (
        explainer[number] if number < len(explainer) else otherwise.format(number + (explainer is ORDINALS))
    )


def _without(draft: Draft, gone: list[tuple[int, int]]) -> Draft:
    for number, place in sorted(gone, reverse=True):
        draft = with_site(draft, number, draft[number].without(place))
    return draft
