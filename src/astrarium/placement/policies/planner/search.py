"""The planner's search makes first drafts, and improves them: additions where most is lost, single changes.

A change counts only if it helps on all samples together. One sample tells most bad changes from good ones,
so that the others are simulated for those that pass it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
import numpy as np

from astrarium.placement.groups import GroupRuntime
from astrarium.placement.policies._bucket_search import BucketLimits, BucketSearch
from astrarium.placement.policies._search_context import SearchContext, SearchProgress
from astrarium.placement.policies._selection import Selected, fast
from astrarium.placement.policies.planner.draft import Draft, Site, SiteMember, empty, with_site
from astrarium.placement.policies.planner.moves import Moves
from astrarium.placement.policies.planner.options import ModelOptions
from astrarium.placement.policies.planner.quick_simulation import DraftResult, QuickSimulation
from astrarium.placement.problem import ALONE, PlacementRequests, Problem

GAIN = 5e-5  # of all requests: what is less is luck
CHOICES = 3  # sites tried for an addition
WIDE = 24  # changes tried for each model before the next one has its turn


class Climb:
    """A climb improves a draft change by change; *budget* requests may be simulated for it."""

    def __init__(
        self, simulation: QuickSimulation, moves: Moves, progress: SearchProgress, budget: float
    ) -> None:
        self.simulation, self.moves, self.progress = simulation, moves, progress
        self._end = simulation.cost + budget

    @property
    def on(self) -> bool:
        return self.progress.on and self.simulation.cost < self._end

    def grown(self, draft: Draft) -> Draft:
        """Add replicas where most is lost, as long as that helps."""
        while self.on:
            result = self.simulation(draft)
            better = next(self._helpful_additions(draft, result), None)
            if better is None:
                return draft
            draft = better
        return draft

    def _helpful_additions(self, draft: Draft, result: DraftResult) -> Iterator[Draft]:
        for model in wanting(result):
            tried = islice(self.moves.additions(draft, model, result), CHOICES)
            ranked = [(self.tried(each).worth, -number, each) for number, each in enumerate(tried)]
            if ranked and max(ranked)[0] > result.worth + GAIN:
                yield max(ranked)[2]

    def tried(self, draft: Draft, sample: int = 0) -> DraftResult:
        self.progress.tried()
        return self.simulation(draft, sample)

    def climbed(self, draft: Draft) -> Draft:
        """Make the first change that helps, until none does.

        The neediest models come first; the samples take turns at telling which they are.
        """
        worth, wide, sample = self.simulation.worth(draft), WIDE, 0
        while self.on:
            better = next(self._better(draft, worth, wide, sample), None)
            if better is not None:
                draft, worth = better
                sample = (sample + 1) % self.simulation.samples
            elif wide > WIDE:
                break
            else:
                wide *= 20
        return draft

    def _better(self, draft: Draft, worth: float, wide: int, sample: int) -> Iterator[tuple[Draft, float]]:
        result = self.simulation(draft, sample)
        for change in self._changes(draft, result, wide):
            if not self.on:
                return
            if self.tried(change, sample).worth > result.worth:
                found = self.simulation.worth(change)
                if found > worth + GAIN:
                    yield change, found

    def _changes(self, draft: Draft, result: DraftResult, wide: int) -> Iterator[Draft]:
        for model in wanting(result):
            yield from islice(self.moves.all_for(draft, model, result), wide)
        yield from self.moves.reshaped(draft, wanting(result))


def wanting(result: DraftResult) -> list[int]:
    """Return the models that lose something, those that lose most first."""
    order = np.argsort(-result.lost, kind="stable").tolist()
    return [model for model in order if result.lost[model] > 0]


# as AlpaServe's own search, with fewer ways to divide GPUs
GROUPED = BucketLimits(8, 4, 0.38, 2.0, 20, 0.3, 2)
LEADERS = 4  # of AlpaServe's groups


def starts(
    simulation: QuickSimulation, runtime: GroupRuntime, progress: SearchProgress, budget: float
) -> Iterator[Draft]:
    """Yield the drafts that the search begins with: all GPUs by turns, all in shares, AlpaServe's groups."""
    options = simulation.options
    models = range(len(options.problem.models))
    if any(options.usable(model, ALONE) for model in models):
        turns = Moves(options, sides=False)
        yield Climb(simulation, turns, progress, budget).grown(empty(options.problem))
    if any(options.shareable(model) for model in models):
        sides = Moves(options, turns=False)
        yield Climb(simulation, sides, progress, budget).grown(packed(options, sides))
    if any(shape != ALONE for model in models for shape in options.shapes(model)):
        yield from grouped(options, runtime, simulation.requests[0], progress)


def everywhere(options: ModelOptions) -> list[Draft]:
    """Return the draft with all models on every GPU, if there is memory: any free GPU can help any model."""
    moves, found = Moves(options, sides=False), []
    for site in empty(options.problem):
        for model in range(len(options.problem.models)):
            if options.usable(model, ALONE):
                site = site.with_member(SiteMember(model, options.usable(model, ALONE)[0]))
        found.append(site)
    return [tuple(_with_batches(moves, site) for site in found)] if all(map(moves.fits, found)) else []


def _with_batches(moves: Moves, site: Site) -> Site:
    """Raise a site's batch limits as far as they leave room for waiting and there is memory."""
    for place, member in enumerate(site.members):
        most = moves.options.roomy(member.model, ALONE)
        for size in (each for each in moves.options.usable(member.model, ALONE) if each <= most):
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
    for part, model in sorted(wanted, key=lambda each: (-each[0].share, each[1])):
        member = SiteMember(model, part.batch, part.share)
        sites = [(site.left, number, site.with_member(member)) for number, site in enumerate(draft)]
        best = min((each for each in sites if moves.fits(each[2])), default=None)
        if best is not None:
            draft = with_site(draft, best[1], best[2])
    return draft


def grouped(
    options: ModelOptions, runtime: GroupRuntime, requests: PlacementRequests, progress: SearchProgress
) -> Iterator[Draft]:
    """Yield drafts of models that share pipelines, found with single requests: batches come later."""
    problem = msgspec.structs.replace(options.problem, requests=requests)
    context = SearchContext.of(problem, msgspec.structs.replace(runtime, max_batch=1, order="arrival"))
    found = BucketSearch(context, GROUPED, fast, progress, lambda _: None).run()
    for leader in found[:LEADERS]:
        yield _draft(options, problem, leader)


def _draft(options: ModelOptions, problem: Problem, selected: Selected) -> Draft:
    gpus = {gpu.id: number for number, gpu in enumerate(problem.gpus)}
    models = {model.index: number for number, model in enumerate(problem.models)}
    moves, sites = Moves(options), []
    for group in selected.groups:
        site = Site(tuple(gpus[gpu] for gpu in group.gpus), group.shape)
        for model in group.models:
            site = next(moves.taking_turns(site, models[model]), site)
        sites.append(site)
    rest = set(gpus.values()) - {gpu for site in sites for gpu in site.gpus}
    return (*sites, *(Site((gpu,)) for gpu in sorted(rest)))
