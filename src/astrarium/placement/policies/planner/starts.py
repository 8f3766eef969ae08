"""The drafts that the search begins with."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.policies import Search
from astrarium.placement.policies._bucket_search import BucketLimits, BucketSearch
from astrarium.placement.policies._search_context import SearchContext
from astrarium.placement.policies._selection import Selected, fast
from astrarium.placement.policies.planner.climb import Climb
from astrarium.placement.policies.planner.draft import (
    Draft,
    Site,
    SiteMember,
    empty,
    with_site,
)
from astrarium.placement.policies.planner.moves import Moves
from astrarium.placement.policies.planner.options import ModelOptions
from astrarium.placement.policies.planner.quick_simulation import QuickSimulation
from astrarium.placement.problem import ALONE, PlacementRequests, Problem

# as AlpaServe's own search, with fewer ways to divide GPUs
GROUPED = BucketLimits(device_buckets=20)
LEADERS = 4  # of AlpaServe's groups


def starts(
    simulation: QuickSimulation, runtime: GroupRuntime, search: Search, budget: float
) -> Iterator[Draft]:
    """Yield the drafts that the search begins with: all GPUs by turns, all in shares, AlpaServe's groups."""
    options = simulation.options
    models = range(len(options.problem.models))
    if any(options.usable(model, ALONE) for model in models):
        turns = Moves(options, sides=False)
        yield Climb(simulation, turns, search, budget).grown(empty(options.problem))
    if any(options.shareable(model) for model in models):
        sides = Moves(options, turns=False)
        yield Climb(simulation, sides, search, budget).grown(packed(options, sides))
    if any(shape != ALONE for model in models for shape in options.shapes(model)):
        yield from grouped(options, runtime, simulation.requests[0], search)


def everywhere(options: ModelOptions) -> list[Draft]:
    """Return the draft with all models on every GPU, if there is memory: any free GPU can help any model."""
    moves = Moves(options, sides=False)
    sites = []
    for site in empty(options.problem):
        for model in range(len(options.problem.models)):
            if options.usable(model, ALONE):
                site = site.with_member(SiteMember(model, options.usable(model, ALONE)[0]))
        sites.append(site)
    return [tuple(_with_batches(moves, site) for site in sites)] if all(map(moves.fits, sites)) else []


def _with_batches(moves: Moves, site: Site) -> Site:
    """Raise a site's batch limits as far as they leave room for waiting and there is memory."""
    for place, member in enumerate(site.members):
        most = moves.options.roomy(member.model, ALONE)
        for size in (
            candidate for candidate in moves.options.usable(member.model, ALONE) if candidate <= most
        ):
            larger = site.changed(place, member._replace(batch=size))
            site = larger if moves.fits(larger) else site
    return site


def packed(options: ModelOptions, moves: Moves) -> Draft:
    """Pack every model in the smallest share that carries it, the largest first, where least is left over.

    A model that finds no place that way is left to the search, which adds replicas.
    """
    draft = empty(options.problem)
    models = range(len(options.problem.models))
    wanted = [(options.parts(model, 0)[0], model) for model in models if options.parts(model, 0)]
    for part, model in sorted(wanted, key=lambda candidate: (-candidate[0].share, candidate[1])):
        member = SiteMember(model, part.batch, part.share)
        sites = [(site.left, number, site.with_member(member)) for number, site in enumerate(draft)]
        best = min((candidate for candidate in sites if moves.fits(candidate[2])), default=None)
        if best is not None:
            draft = with_site(draft, best[1], best[2])
    return draft


def grouped(
    options: ModelOptions, runtime: GroupRuntime, requests: PlacementRequests, search: Search
) -> Iterator[Draft]:
    """Yield drafts of models that share pipelines, found with single requests: batches come later."""
    problem = msgspec.structs.replace(options.problem, requests=requests)
    context = SearchContext.of(problem, msgspec.structs.replace(runtime, max_batch=1, order="arrival"))
    selections = BucketSearch(context, GROUPED, fast, search, lambda _: None).run()
    for leader in selections[:LEADERS]:
        yield _draft(options, problem, leader)


def _draft(options: ModelOptions, problem: Problem, selected: Selected) -> Draft:
    gpus = {gpu.id: number for number, gpu in enumerate(problem.gpus)}
    models = {model.index: number for number, model in enumerate(problem.models)}
    moves = Moves(options)
    sites = []
    for group in selected.groups:
        site = Site(tuple(gpus[gpu] for gpu in group.gpus), group.shape)
        for model in group.models:
            site = next(moves.taking_turns(site, models[model]), site)
        sites.append(site)
    rest = set(gpus.values()) - {gpu for site in sites for gpu in site.gpus}
    return (*sites, *(Site((gpu,)) for gpu in sorted(rest)))
