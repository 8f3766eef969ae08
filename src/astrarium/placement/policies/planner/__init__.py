"""Astrarium's own planner finds replicas, shapes, batch limits and shares together, for what will really run.

1. Several samples of requests are made (`planner/judge`): a plan that fits one of them by chance fails on
   the others.
2. Drafts are begun with GPUs that are taken by turns, with GPUs in shares, and with AlpaServe's groups
   (`planner/starts`), from sizes that leave room for queues (`planner/options`).
3. Each is improved by single changes, with a quick native simulation that knows of queues, batches and
   interference (`planner/moves`, `planner/quick_simulation`), and freed of what is to no purpose.
4. The best few are judged under what will really run: by the judge that the search brings, else
   by worker queues with interference (`planner/judge`). Where the judge sees models fail, more is changed;
   replicas that it does not miss go, unless the others would be too busy without them.
5. Requests that nobody planned with choose between before and after, and say what to expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Judge, Search, placement_policies
from astrarium.placement.policies.planner.climb import Climb
from astrarium.placement.policies.planner.draft import Draft, empty
from astrarium.placement.policies.planner.explain import DraftExplainer
from astrarium.placement.policies.planner.finishing import calmed, finished, trimmed
from astrarium.placement.policies.planner.judge import (
    CautiousInterference,
    another,
    long_enough,
    own_judge,
    samples,
)
from astrarium.placement.policies.planner.mending import DraftJudge, judged_best, mended
from astrarium.placement.policies.planner.moves import Moves
from astrarium.placement.policies.planner.options import ModelOptions
from astrarium.placement.policies.planner.quick_simulation import QuickSimulation, worths
from astrarium.placement.policies.planner.starts import everywhere, starts
from astrarium.placement.problem import ALONE, PlacementRequests, Problem
from astrarium.placement.worker_queues import Batching

GREEDY = GroupRuntime(dispatch="queue", another=True, stage_overhead=0.0, fixed_overhead=0)
LARGEST = 64  # batches: beyond that hardly any model gains
CALMED = 3  # drafts that are judged with smaller batch limits too
# requests that judges hear in all; and yet so many plans
HEARD = 500_000
FEWEST = 10
Count = Annotated[int, msgspec.Meta(ge=1)]


@placement_policies.register("planner")
class Planner:
    """Guided by simulation with queues, batches and interference; judged by what will really run."""

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """So many *samples* are planned with; where a problem brings no requests, each has *sample* of them.
        *effort*: millions of requests to simulate at most. *judged*: plans to judge, with *heard* requests
        each or more. *even*: from 0, every request counts alike, to 1, every model does. *runtime* is how
        groups serve in the quick simulation, *batching* how worker queues do where no judge is brought."""

        samples: Count = 4
        sample: Count = 10_000
        effort: Annotated[float, msgspec.Meta(ge=0)] = 150.0
        judged: Count = 40
        heard: Count = 6_000
        even: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
        runtime: GroupRuntime = GREEDY
        batching: Batching = Batching()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def place(self, problem: Problem, search: Search) -> Plan:
        chosen = self.parameters
        batched = chosen.runtime.dispatch == "queue"
        options = ModelOptions(problem, chosen.batching.max_wait, LARGEST if batched else 1)
        explainer = DraftExplainer(options)
        if not problem.gpus:
            return explainer.plan((), None)
        simulation = self._simulation(options, samples(problem, chosen.samples, chosen.sample))
        drafts = self._drafts(simulation, search, explainer)
        return self._final(simulation, drafts, search, explainer, search.judge)

    def _simulation(self, options: ModelOptions, requests: Sequence[PlacementRequests]) -> QuickSimulation:
        weights = worths([model.rate for model in options.problem.models], self.parameters.even)
        return QuickSimulation(
            options, requests, self.parameters.runtime, CautiousInterference(options.problem), weights
        )

    def _drafts(self, simulation: QuickSimulation, search: Search, explainer: DraftExplainer) -> list[Draft]:
        """Return drafts, the best first. Half of the effort is for beginning, half for improving."""
        budget = self.parameters.effort * 5e5
        drafts = list[Draft]()
        began = [empty(simulation.problem), *starts(simulation, self.parameters.runtime, search, budget)]
        for draft in sorted(dict.fromkeys(began), key=simulation.worth, reverse=True):
            climb = Climb(simulation, Moves(simulation.options), search, budget / len(began))
            drafts.append(finished(climb, climb.climbed(draft)))
            if all(simulation.worth(drafts[-1]) > simulation.worth(other) for other in drafts[:-1]):
                search.improved(
                    explainer.plan(drafts[-1], simulation(drafts[-1]).goodput(simulation.problem))
                )
        return sorted([*drafts, *everywhere(simulation.options)], key=simulation.worth, reverse=True)

    def _final(
        self,
        simulation: QuickSimulation,
        drafts: Sequence[Draft],
        search: Search,
        explainer: DraftExplainer,
        judge: Judge | None,
    ) -> Plan:
        """Choose and mend a draft with some requests, and confirm it with others."""
        chosen, fresh = (
            self._draft_judge(simulation, drafts, explainer, judge, self.parameters.samples + number)
            for number in range(2)
        )
        moves = Moves(simulation.options)
        climb = Climb(simulation, moves, search, self.parameters.effort * 1e5)
        calm = [calmed(climb, draft) for draft in drafts[:CALMED]]
        # Worker queues wait for batches to fill, and want small limits; a batching policy knows when not to.
        ranked = (*calm, *drafts) if judge is None else (*drafts[:CALMED], *calm, *drafts[CALMED:])
        before = judged_best(chosen, dict.fromkeys(ranked), search)
        after = mended(chosen, moves, before, search)
        ends = (trimmed(climb, after, chosen), after, before)
        best = max(ends, key=fresh.worth) if search.on else ends[0]
        return explainer.plan(best, fresh(best).goodput(simulation.problem), simulation)

    def _draft_judge(
        self,
        simulation: QuickSimulation,
        drafts: Sequence[Draft],
        explainer: DraftExplainer,
        judge: Judge | None,
        number: int,
    ) -> DraftJudge:
        """Return a judge of drafts under what will really run.

        Groups that span GPUs reject a request at once that would be late: the quick simulation knows that,
        worker queues do not.
        """
        problem = simulation.problem
        chosen = self.parameters
        heard = another(problem, number, max(chosen.sample, chosen.heard))
        if judge is None and any(site.shape != ALONE for draft in drafts for site in draft):
            other = self._simulation(simulation.options, [heard])
            return DraftJudge(simulation, lambda draft: other(draft).attained.tolist(), chosen.judged)
        if judge is None:
            heard = long_enough(problem, heard, chosen.heard)
            judge = own_judge(problem, CautiousInterference(problem), chosen.batching)
        asked = judge
        left = min(chosen.judged, max(FEWEST, HEARD // max(1, len(heard.times))))
        return DraftJudge(simulation, lambda draft: asked(explainer.plan(draft, None), heard), left)
