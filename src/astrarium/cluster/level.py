"""Apps on a cluster, as a level."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from astrarium.cluster.auction.partial import tally_of
from astrarium.cluster.contract import Action, Event
from astrarium.cluster.machines import Slowdowns
from astrarium.cluster.policies import Allocator, Arbiter, cluster_policies
from astrarium.cluster.record import ClusterRecord, Watch
from astrarium.cluster.report import files as report
from astrarium.cluster.scenario.build import Built, build, slowdowns
from astrarium.cluster.scenario.read import DEFAULT_POLICY, ClusterScenario, parse
from astrarium.cluster.scenario.schema import Costs
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.world import ClusterWorld
from astrarium.core.choice import chosen
from astrarium.core.engine import Engine
from astrarium.core.level import Level, Report, Simulation, Watching
from astrarium.core.trace import Step
from astrarium.core.units import Time
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
    truth, believed = slowdowns(scenario), slowdowns(scenario, believed=True)
    state = _Watched(policy, look, believed, scenario.costs)
    watch = Watch(state, truth)

    def hear(step: Step) -> None:
        watch(step)
        if watching.trace is not None:
            watching.trace(step)

    def record(end: Time) -> ClusterRecord:
        state.looked(end)
        rows = state.ledger.rows.values()
        return watch.record(scenario.policy.name, rows, end, tally_of(policy))

    world = ClusterWorld(truth, scenario.costs.startup, scenario.costs.checkpoints)
    engine: Engine[Any, Any, Any] = Engine(state, Arbiter(policy), watching.validate, hear)
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


def ends(
    policy: Allocator, arrivals: Iterable[tuple[Time, Event]], state: ClusterState, world: ClusterWorld
) -> list[AppRow]:
    """Return where apps ended up, and nothing else: for other worlds than those of scenarios."""
    simulate(Engine(state, Arbiter(policy)), arrivals, world)
    return list(state.ledger.rows.values())


class _Watched(ClusterState):
    """Books that somebody looks into just before the first event after an instant: no step is added."""

    def __init__(
        self, policy: Allocator, look: tuple[Time, Look] | None, believed: Slowdowns | None, costs: Costs
    ) -> None:
        super().__init__(believed, costs.startup, checkpoints=costs.checkpoints)
        self._policy, self._look_at = policy, look

    def apply(self, now: Time, event: Event) -> None:
        if self._look_at is not None and now > self._look_at[0]:
            self._show()
        super().apply(now, event)

    def looked(self, end: Time) -> None:
        """Look now: nothing happened after the instant."""
        if self._look_at is not None:
            self._show()

    def _show(self) -> None:
        assert self._look_at is not None
        at, look = self._look_at
        self._look_at = None
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
    report=Report(
        summarize=report.summarize_run,
        tables=report.tables,
        shown=report.shown,
        write=report.write,
        draw=report.draw,
        picture="fairness.png",
        files=report.FILES,
        rows=report.rows,
        explain=report.explain,
    ),
    named={},
)
