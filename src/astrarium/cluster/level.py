"""Apps on a cluster, simulated from start to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from astrarium.cluster.auction.partial import tally_of
from astrarium.cluster.contract import Event
from astrarium.cluster.machines import Slowdowns
from astrarium.cluster.policies import Allocator, Arbiter
from astrarium.cluster.record import ClusterRecord, Watch
from astrarium.cluster.scenario.build import Built, build, slowdowns
from astrarium.cluster.scenario.read import ClusterScenario, allocator
from astrarium.cluster.scenario.schema import Costs
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.world import ClusterWorld
from astrarium.core.engine import Engine
from astrarium.core.units import Time
from astrarium.run.simulate import simulate

Progress = Callable[[Time], None]
Look = Callable[[Time, ClusterState, Allocator], None]


def run(
    scenario: ClusterScenario,
    progress: Progress | None = None,
    built: Built | None = None,
    look: tuple[Time, Look] | None = None,
) -> ClusterRecord:
    """*look* is called once, with the books and the policy as they are at an instant."""
    built = built or build(scenario)
    truth, believed = slowdowns(scenario), slowdowns(scenario, believed=True)
    chosen = allocator(scenario.policy, scenario.parameters)
    state = _Watched(chosen, look, believed, scenario.costs)
    watch = Watch(state, truth)
    world = ClusterWorld(truth, scenario.costs.startup, scenario.costs.checkpoints)
    end = simulate(Engine(state, Arbiter(chosen), record=watch), built.arrivals, world, progress)
    state.looked(end)
    return watch.record(scenario.policy, state.ledger.rows.values(), end, tally_of(chosen))


def compare(
    scenarios: Mapping[str, ClusterScenario], progress: Callable[[str], Progress | None] | None = None
) -> dict[str, ClusterRecord]:
    """Each on the same apps and machines: those of the first."""
    built = build(next(iter(scenarios.values())))
    return {
        label: run(each, progress(label) if progress else None, built) for label, each in scenarios.items()
    }


def ends(
    chosen: Allocator, arrivals: Iterable[tuple[Time, Event]], state: ClusterState, world: ClusterWorld
) -> list[AppRow]:
    """Where apps ended up, and nothing else: for other worlds than those of scenarios."""
    simulate(Engine(state, Arbiter(chosen)), arrivals, world)
    return list(state.ledger.rows.values())


class _Watched(ClusterState):
    """Books that somebody looks into just before the first event after an instant: no step is added."""

    def __init__(
        self, chosen: Allocator, look: tuple[Time, Look] | None, believed: Slowdowns | None, costs: Costs
    ) -> None:
        super().__init__(believed, costs.startup, checkpoints=costs.checkpoints)
        self._chosen, self._look_at = chosen, look

    def apply(self, now: Time, event: Event) -> None:
        if self._look_at is not None and now > self._look_at[0]:
            self._show()
        super().apply(now, event)

    def looked(self, end: Time) -> None:
        """Nothing happened after it."""
        if self._look_at is not None:
            self._show()

    def _show(self) -> None:
        assert self._look_at is not None
        at, look = self._look_at
        self._look_at = None
        look(at, self, self._chosen)
