"""Apps on a cluster, as a level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astrarium.cluster.auction.tally import tally_of
from astrarium.cluster.contract import Action, Event
from astrarium.cluster.policies import Allocator, Arbiter, cluster_policies
from astrarium.cluster.record import ClusterRecord, Watch
from astrarium.cluster.report import files as report
from astrarium.cluster.scenario.build import Built, build, slowdowns
from astrarium.cluster.scenario.read import DEFAULT_POLICY, ClusterScenario, parse
from astrarium.cluster.scenario.schema import Costs
from astrarium.cluster.scenario.sharing import shared, simulated_rules
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import ClusterState
from astrarium.cluster.world import ClusterWorld
from astrarium.core.choice import chosen
from astrarium.core.engine import Engine
from astrarium.core.level import Level, Simulation, Watching
from astrarium.core.quantities import Time
from astrarium.run.simulate import simulate

Progress = Callable[[Time], None]
Look = Callable[[Time, ClusterState, Allocator], None]


def prepare(
    scenario: ClusterScenario,
    policy: Allocator,
    watching: Watching,
    built: Built | None = None,
    look: tuple[Time, Look] | None = None,
) -> Simulation[ClusterRecord]:
    """Make the books, the world and the arrivals of a scenario.

    *look* is called once, with the books and the policy as they are at an instant.
    """
    built = built or build(scenario)
    policy = shared(policy, simulated_rules(scenario, built))
    truth = slowdowns(scenario)
    believed = slowdowns(scenario, believed=True)
    state = _Watched(policy, look, believed, scenario.costs)
    watch = Watch(state, truth)

    def record(end: Time) -> ClusterRecord:
        state.show()  # where nothing happened after the instant
        rows = state.ledger.rows.values()
        return watch.record(scenario.policy.name, rows, end, tally_of(policy))

    world = ClusterWorld(truth, scenario.costs.startup, scenario.costs.checkpoints)
    engine: Engine[Any, Any, Any] = Engine(state, Arbiter(policy), watching.validate, watching.after(watch))
    return Simulation(engine, built.arrivals, world, record, built.work_ends)


def run(
    scenario: ClusterScenario,
    progress: Progress | None = None,
    built: Built | None = None,
    look: tuple[Time, Look] | None = None,
) -> ClusterRecord:
    """Simulate a scenario; *built* saves making its apps again, *look* sees the books at an instant."""
    policy = chosen(cluster_policies, scenario.policy)
    ready = prepare(scenario, policy, Watching(), built, look)
    return ready.record(simulate(ready.engine, ready.arrivals, ready.world, progress))


class _Watched(ClusterState):
    """Books that somebody looks into just before the first event after an instant: no step is added."""

    def __init__(
        self, policy: Allocator, look: tuple[Time, Look] | None, believed: Slowdowns | None, costs: Costs
    ) -> None:
        super().__init__(believed, costs.startup, checkpoints=costs.checkpoints)
        self._policy = policy
        self._look = look

    def apply(self, now: Time, event: Event) -> None:
        if self._look is not None and now > self._look[0]:
            self.show()
        super().apply(now, event)

    def show(self) -> None:
        """Let somebody look at the books, once."""
        if self._look is not None:
            (at, look), self._look = self._look, None
            look(at, self, self._policy)


LEVEL: Level[ClusterScenario, ClusterRecord] = Level(
    name="cluster",
    subject="apps on a cluster",
    item="app",
    scenario=ClusterScenario,
    events=Event,
    actions=Action,
    policies=cluster_policies,
    default=DEFAULT_POLICY,
    parse=parse,
    prepare=prepare,
    summarize=report.summarize_run,
    report=report,
    picture="fairness.png",
)
