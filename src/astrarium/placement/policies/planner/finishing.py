"""A draft that no change improves any more is freed of what it does not need.

Replicas that nobody misses go, batch limits become as small as they can be, and shares that nobody has are
given away. None of this may leave a site busier than `EDGE`: a sample is short, and what just keeps up with
it falls behind in the next one.
"""

from __future__ import annotations

from collections.abc import Callable

from astrarium.core.quantities import SECOND
from astrarium.placement.plan import ROUNDING
from astrarium.placement.policies.planner.climb import GAIN, Climb
from astrarium.placement.policies.planner.draft import (
    Draft,
    Site,
    placed_models,
    replicas_of,
    with_site,
)
from astrarium.placement.policies.planner.mending import DraftJudge
from astrarium.placement.policies.planner.options import STEP, ModelOptions
from astrarium.placement.problem import ALONE

EDGE = 0.85
TRIMMED = 12  # drafts that may be judged at the end, to see which replicas are to no purpose


def finished(climb: Climb, draft: Draft) -> Draft:
    options = climb.moves.options
    return spread(options, pruned(climb, spread(options, pruned(climb, draft))))


def pruned(climb: Climb, draft: Draft) -> Draft:
    """Remove replicas without which the draft is as good: they cost memory, and fit the samples by chance."""
    return _fewer(climb, draft, lambda less, more: climb.on and _as_good(climb.simulation.worth, less, more))


def trimmed(climb: Climb, draft: Draft, judge: DraftJudge) -> Draft:
    """Remove such replicas once more, judged under what will really run.

    The quick simulation, asked first, tells most replicas that are missed.
    """
    judge.left = max(judge.left, TRIMMED)

    def nobody_misses(less: Draft, more: Draft) -> bool:
        return (
            climb.search.on
            and judge.left > 0
            and _as_good(climb.simulation.worth, less, more)
            and _as_good(judge.worth, less, more)
        )

    return _fewer(climb, draft, nobody_misses)


def _as_good(worth: Callable[[Draft], float], less: Draft, more: Draft) -> bool:
    return worth(less) >= worth(more)


def _fewer(climb: Climb, draft: Draft, nobody_misses: Callable[[Draft, Draft], bool]) -> Draft:
    for model in sorted(placed_models(draft)):
        for number, place in reversed(list(replicas_of(draft, model))):
            less = with_site(draft, number, draft[number].without(place))
            if model in placed_models(less) and _calm(climb, less, draft, model):
                climb.search.tried()
                draft = less if nobody_misses(less, draft) else draft
    return draft


def calmed(climb: Climb, draft: Draft) -> Draft:
    """Make batch limits smaller where they do as well: batches fill sooner, and neighbours wait less."""
    for model in sorted(placed_models(draft)):
        while climb.on:
            *_, smaller = (draft, *climb.moves.batches(draft, model))
            if _batch(smaller, model) >= _batch(draft, model) or not _calm(climb, smaller, draft, model):
                break
            climb.search.tried()
            if climb.simulation.worth(smaller) < climb.simulation.worth(draft) - GAIN:
                break
            draft = smaller
    return draft


def _batch(draft: Draft, model: int) -> int:
    return sum(draft[number].members[place].batch for number, place in replicas_of(draft, model))


def _calm(climb: Climb, change: Draft, draft: Draft, model: int) -> bool:
    options = climb.moves.options
    return busiest(options, change, model) <= max(EDGE, busiest(options, draft, model))


def busiest(options: ModelOptions, draft: Draft, model: int) -> float:
    """Return how busy the busiest site of a model is, if requests go where they are served fastest."""
    loads = {placed: _load(options, draft, placed) for placed in placed_models(draft)}
    sites = [draft[number] for number, _ in replicas_of(draft, model)]
    return max(
        loads[model] if site.side else sum(loads[member.model] for member in site.members) for site in sites
    )


def _load(options: ModelOptions, draft: Draft, model: int) -> float:
    """Return what a model adds to the load of each of its replicas."""
    able = sum(_ability(options, draft[number], place) for number, place in replicas_of(draft, model))
    return options.problem.models[model].rate / able


def _ability(options: ModelOptions, site: Site, place: int) -> float:
    """Return a replica's requests a second, in full batches."""
    model, batch, share = site.members[place]
    if site.shape == ALONE:
        return batch * SECOND / max(1, options.time(model, site.gpus[0], batch, share))
    return batch * SECOND / max(1, options.problem.models[model].forms[site.shape].interval(batch))


def spread(options: ModelOptions, draft: Draft) -> Draft:
    """Give shares that no model has to the models with the least to spare, step by step."""
    for number, site in enumerate(draft):
        if len(site.members) == 1:
            site = site.changed(0, site.members[0]._replace(share=1.0))
        while site.side and site.left > STEP - ROUNDING and (place := _neediest(options, site)) is not None:
            site = _with_more(site, place)
        draft = with_site(draft, number, site)
    return draft


def _neediest(options: ModelOptions, site: Site) -> int | None:
    """Return the member whose batches take most of its objective, of those that more would make faster."""
    ranked = [
        (_part(options, site, place), -place)
        for place in range(len(site.members))
        if _part(options, _with_more(site, place), place) < _part(options, site, place)
    ]
    return -max(ranked)[1] if ranked else None


def _part(options: ModelOptions, site: Site, place: int) -> float:
    model, batch, share = site.members[place]
    return options.time(model, site.gpus[0], batch, share) / options.problem.models[model].slo


def _with_more(site: Site, place: int) -> Site:
    member = site.members[place]
    return site.changed(place, member._replace(share=round(member.share + STEP, 9)))
