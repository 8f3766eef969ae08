"""The simulated world of the device level says how long an iteration takes beside others.

Lanes share the GPU's computing. As long as what their iterations demand together is no more than the GPU has,
each runs as if alone; beyond that all are slowed down alike. The demand is taken when an iteration starts:
iterations are short beside the time in which jobs come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from astrarium.core.quantities import Time
from astrarium.device import contract
from astrarium.device.contract import Action, Event, RunIteration
from astrarium.device.state import DeviceState
from astrarium.run.simulate import World


class DeviceWorld(World[Action, Event, DeviceState]):
    """The world turns a policy's actions into future events. *switch* is the cost of a change of jobs in a
    lane, *overhead* that of every iteration, as a share, and *pause* the time that a job (by its number) then
    needs for its next batch of data."""

    def __init__(
        self, switch: Time = 0, overhead: float = 0.0, pause: Time | Callable[[int], Time] = 0
    ) -> None:
        self._switch = switch
        self._overhead = overhead
        self._pause = pause if callable(pause) else lambda job: pause
        self._last: dict[int, int] = {}  # by lane: whose iteration was the last

    def aftermath(self, now: Time, event: Event, state: DeviceState) -> Iterator[tuple[Time, Event]]:
        if type(event) is contract.JobArrived:
            yield now, contract.IterationWanted(event.job.id)

    def consequences(self, now: Time, action: Action, state: DeviceState) -> Iterator[tuple[Time, Event]]:
        if type(action) is RunIteration:
            yield from self._iteration(now, action, state)

    def _iteration(self, now: Time, action: RunIteration, state: DeviceState) -> Iterator[tuple[Time, Event]]:
        lane = state.layout.lane_of(action.job)
        assert lane is not None
        demand = sum(state.admitted[running.job].demand for running in state.running.values())
        alone = state.admitted[action.job].iteration * (1.0 + self._overhead)
        switched = self._last.get(lane.id, action.job) != action.job
        self._last[lane.id] = action.job
        took = max(1, round(alone * max(1.0, demand))) + self._switch * switched
        yield now + took, contract.IterationFinished(action.job, state.running[lane.id].run, now)
        yield now + took + self._pause(action.job), contract.IterationWanted(action.job)
