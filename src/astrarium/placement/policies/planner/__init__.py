"""planner: Astrarium's own. Replicas, shapes, batch limits and shares together, for what will really run.

1. Several samples of requests are made (`planner/requests`): a plan that fits one of them by chance fails on
   the others.
2. Drafts are begun with GPUs that are taken by turns, with GPUs in shares, and with AlpaServe's groups
   (`planner/starts`), from sizes that leave room for queues (`planner/options`).
3. Each is improved by single changes, with a quick native simulation that knows of queues, batches and
   interference (`planner/search`, `planner/moves`, `planner/glance`), and freed of what is to no purpose
   (`planner/finish`).
4. The best few are judged under what will really run: by the judge that the search brings (`judge_of`), else
   by worker queues with interference (`planner/judge`). Where the judge sees models fail, more is changed
   (`planner/final`); replicas that it does not miss go, unless the others would be too busy without them.
5. Requests that nobody planned with choose between before and after, and say what to expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from astrarium.placement.evaluation import Batching
from astrarium.placement.groups import Runtime
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Judge, Search, judge_of, placement_policies
from astrarium.placement.policies._ground import Going
from astrarium.placement.policies.planner.draft import Draft, empty
from astrarium.placement.policies.planner.finish import Bench, calmed, finished, judged_best, mended, trimmed
from astrarium.placement.policies.planner.glance import Glance, worths
from astrarium.placement.policies.planner.judge import Caution, another, long_enough, own_judge, samples
from astrarium.placement.policies.planner.moves import Moves
from astrarium.placement.policies.planner.options import Options
from astrarium.placement.policies.planner.search import Climb, everywhere, starts
from astrarium.placement.policies.planner.words import Words
from astrarium.placement.problem import ALONE, Problem, Requests

GREEDY = Runtime(dispatch="queue", another=True, stage_overhead=0.0, fixed_overhead=0)
LARGEST = 64  # batches: beyond that hardly any model gains
CALMED = 3  # drafts that are judged with smaller batch limits too
HEARD, FEWEST = 500_000, 10  # requests that judges hear in all; and yet so many plans
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
        runtime: Runtime = GREEDY
        batching: Batching = Batching()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def place(self, problem: Problem, search: Search) -> Plan:
        chosen, going = self.parameters, Going(search)
        batched = chosen.runtime.dispatch == "queue"
        options = Options(problem, chosen.batching.max_wait, LARGEST if batched else 1)
        words = Words(options)
        if not problem.gpus:
            return words.plan((), None)
        glance = self._glance(options, samples(problem, chosen.samples, chosen.sample))
        drafts = self._drafts(glance, going, words)
        return self._final(glance, drafts, going, words, judge_of(search))

    def _glance(self, options: Options, requests: Sequence[Requests]) -> Glance:
        weights = worths([model.rate for model in options.problem.models], self.parameters.even)
        return Glance(options, requests, self.parameters.runtime, Caution(options.problem), weights)

    def _drafts(self, glance: Glance, going: Going, words: Words) -> list[Draft]:
        """The best first. Half of the effort is for beginning, half for improving."""
        budget, found = self.parameters.effort * 5e5, list[Draft]()
        began = [empty(glance.problem), *starts(glance, self.parameters.runtime, going, budget)]
        for draft in sorted(dict.fromkeys(began), key=glance.worth, reverse=True):
            climb = Climb(glance, Moves(glance.options), going, budget / len(began))
            found.append(finished(climb, climb.climbed(draft)))
            if all(glance.worth(found[-1]) > glance.worth(other) for other in found[:-1]):
                going.improved(words.plan(found[-1], glance(found[-1]).goodput(glance.problem)))
        return sorted([*found, *everywhere(glance.options)], key=glance.worth, reverse=True)

    def _final(
        self, glance: Glance, drafts: Sequence[Draft], going: Going, words: Words, judge: Judge | None
    ) -> Plan:
        """Chosen and mended with some requests, confirmed with others."""
        bench, fresh = (
            self._bench(glance, drafts, words, judge, self.parameters.samples + number) for number in range(2)
        )
        moves = Moves(glance.options)
        climb = Climb(glance, moves, going, self.parameters.effort * 1e5)
        calm = [calmed(climb, draft) for draft in drafts[:CALMED]]
        # Worker queues wait for batches to fill, and want small limits; a batching policy knows when not to.
        ranked = (*calm, *drafts) if judge is None else (*drafts[:CALMED], *calm, *drafts[CALMED:])
        before = judged_best(bench, dict.fromkeys(ranked), going)
        after = mended(bench, moves, before, going)
        ends = (trimmed(climb, after, bench), after, before)
        best = max(ends, key=fresh.worth) if going.on else ends[0]
        return words.plan(best, fresh(best).goodput(glance.problem), glance)

    def _bench(
        self, glance: Glance, drafts: Sequence[Draft], words: Words, judge: Judge | None, number: int
    ) -> Bench:
        """Under what will really run. Groups that span GPUs reject at once who would be late: that is the
        quick simulation's business, and no worker queue's."""
        problem, chosen = glance.problem, self.parameters
        heard = another(problem, number, max(chosen.sample, chosen.heard))
        if judge is None and any(site.shape != ALONE for draft in drafts for site in draft):
            other = self._glance(glance.options, [heard])
            return Bench(glance, lambda draft: other(draft).attained.tolist(), chosen.judged)
        if judge is None:
            heard = long_enough(problem, heard, chosen.heard)
            judge = own_judge(problem, Caution(problem), chosen.batching)
        asked, left = judge, min(chosen.judged, max(FEWEST, HEARD // max(1, len(heard.times))))
        return Bench(glance, lambda draft: asked(words.plan(draft, None), heard), left)
