"""The planner's search makes drafts, improves them by additions and single changes, and finishes the best.

A change counts only if it helps on all samples together. One sample tells most bad changes from good ones,
so that the others are simulated for those that pass it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

import msgspec
import numpy as np

from astrarium.core.quantities import SECOND
from astrarium.placement.groups import GroupRuntime
from astrarium.placement.plan import ROUNDING
from astrarium.placement.policies import Search
from astrarium.placement.policies._bucket_search import BucketLimits, BucketSearch
from astrarium.placement.policies._search_context import SearchContext
from astrarium.placement.policies._selection import Selected, fast
from astrarium.placement.policies.planner.draft import (
    Draft,
    Site,
    SiteMember,
    empty,
    placed_models,
    replicas_of,
    with_site,
    without_model,
)
from astrarium.placement.policies.planner.moves import Moves
from astrarium.placement.policies.planner.options import STEP, ModelOptions
from astrarium.placement.policies.planner.quick_simulation import DraftResult, Floats, QuickSimulation
from astrarium.placement.problem import ALONE, PlacementRequests, Problem

GAIN = 5e-5  # of all requests: what is less is luck
CHOICES = 3  # sites tried for an addition
WIDE = 24  # changes tried for each model before the next one has its turn


class Climb:
    """A climb improves a draft change by change; *budget* requests may be simulated for it."""

    def __init__(self, simulation: QuickSimulation, moves: Moves, search: Search, budget: float) -> None:
        self.simulation = simulation
        self.moves = moves
        self.search = search
        self._end = simulation.cost + budget

    @property
    def on(self) -> bool:
        return self.search.on and self.simulation.cost < self._end

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
        self.search.tried()
        return self.simulation(draft, sample)

    def climbed(self, draft: Draft) -> Draft:
        """Make the first change that helps, until none does.

        The neediest models come first; the samples take turns at telling which they are.
        """
        worth = self.simulation.worth(draft)
        wide = WIDE
        sample = 0
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
    found = []
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
    options: ModelOptions, runtime: GroupRuntime, requests: PlacementRequests, search: Search
) -> Iterator[Draft]:
    """Yield drafts of models that share pipelines, found with single requests: batches come later."""
    problem = msgspec.structs.replace(options.problem, requests=requests)
    context = SearchContext.of(problem, msgspec.structs.replace(runtime, max_batch=1, order="arrival"))
    found = BucketSearch(context, GROUPED, fast, search, lambda _: None).run()
    for leader in found[:LEADERS]:
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


# When no change helps any more: nothing to no purpose, and nothing without need on the edge. Replicas that
# nobody misses go, batch limits become as small as they can be, and shares that nobody has are given away.
# None of this may leave a site busier than `EDGE`: a sample is short, and what just keeps up with it falls
# behind in the next one.

# The last steps: drafts are judged under what will really run, mended where models fail, and confirmed.


JUDGED_GAIN = 5e-4  # of all requests: a judge hears fewer of them than the search did
FINALISTS = 7
MENDED = 3  # models at a time
OVERLOADED = 0.9  # what is worth less may be worth more with a model less
# changes of each kind for each model; and how many of them all are judged
LOOKED_AT = 10
PROMISING = 8


Attained = Callable[[Draft], Sequence[float]]  # of each model


class DraftJudge:
    """A draft judge judges drafts on one sample, each once; *left* more may be judged."""

    def __init__(self, simulation: QuickSimulation, attained: Attained, left: int) -> None:
        self.simulation = simulation
        self._attained = attained
        self.left = left
        self._known: dict[Draft, DraftResult] = {}

    def __call__(self, draft: Draft) -> DraftResult:
        if draft not in self._known:
            self.left -= 1
            placed = placed_models(draft)
            pairs = enumerate(self._attained(draft))
            attained: Floats = np.array([each if place in placed else 0.0 for place, each in pairs])
            lost = self.simulation.weights * (1 - attained)
            self._known[draft] = DraftResult(
                attained, self.simulation(draft).work, float(1 - lost.sum()), lost
            )
        return self._known[draft]

    def worth(self, draft: Draft) -> float:
        return self(draft).worth


def judged_best(judge: DraftJudge, drafts: Iterable[Draft], search: Search) -> Draft:
    """Return the draft that is judged best; the first of equals."""
    best, *others = drafts
    for draft in others[:FINALISTS]:
        if (
            search.on
            and search.tried()
            and judge.left > 1
            and judge(draft).worth > judge(best).worth + JUDGED_GAIN
        ):
            best = draft
    return best


def mended(judge: DraftJudge, moves: Moves, draft: Draft, search: Search) -> Draft:
    """Make the first change that helps the neediest models, until none does or enough was judged."""
    better: Draft | None = draft
    while better is not None and search.on:
        draft = better
        better = _first_better(judge, moves, better, search)
    return draft


def _first_better(judge: DraftJudge, moves: Moves, draft: Draft, search: Search) -> Draft | None:
    result = judge(draft)
    for change in _changes(judge, moves, draft, result):
        if judge.left <= 0 or not search.tried():
            return None
        if judge(change).worth > result.worth + JUDGED_GAIN:
            return change
    return None


def _changes(judge: DraftJudge, moves: Moves, draft: Draft, result: DraftResult) -> Iterator[Draft]:
    """Yield changes worth judging: all of limits and shares, and the best few of replicas.

    What limits and shares do, the quick simulation hardly sees; replicas it can rank.
    """
    needy = wanting(result)[:MENDED]
    for model in needy:
        yield from chain(moves.batches(draft, model), moves.shares(draft, model))
    others = chain.from_iterable(_replicas(moves, draft, model, result) for model in needy)
    yield from sorted(others, key=lambda change: -judge.simulation(change).worth)[:PROMISING]
    if result.worth < OVERLOADED:
        # models that count least first: in queues that drop nobody, one model too many makes all late
        weights = judge.simulation.weights
        ranked = sorted(placed_models(draft), key=lambda model: (float(weights[model]), model))
        yield from (without_model(draft, model) for model in ranked)


def _replicas(moves: Moves, draft: Draft, model: int, result: DraftResult) -> Iterator[Draft]:
    ways = (moves.additions, moves.exchanges, moves.departures)
    return chain.from_iterable(islice(way(draft, model, result), LOOKED_AT) for way in ways)


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
    loads = {each: _load(options, draft, each) for each in placed_models(draft)}
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
