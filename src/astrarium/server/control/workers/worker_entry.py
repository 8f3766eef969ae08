"""What the fleet remembers of one worker from one process of it to the next."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.server.control.workers.blame import Loss
from astrarium.serving.live.messages import WorkerBroken
from astrarium.serving.live.process import Death
from astrarium.serving.live.workers import WorkerSpec

FIRST_PAUSE = 100 * MILLISECOND
LONGEST_PAUSE = 10 * SECOND
GOOD_LIFE = 30 * SECOND  # after this a death counts as the first
GOOD_LIFE_OF_BLAMELESS = SECOND  # after this a worker that a model has broken has no pause at all
OVERDUE_SHARE = 0.5  # of what a start has taken: so much longer it is taken to last, if longer than usual
LOADS = 2  # so often a model may end a worker that loads it


@dataclass
class WorkerEntry:
    """The fleet makes an entry for each GPU, and for each worker of a model that is set apart.

    An entry outlives the worker's process, and goes when its model is no longer set apart.
    """

    spec: WorkerSpec
    only_model: int = -1  # the one model that it has; -1: all that are not set apart
    up: bool = False  # its process hears orders
    ready: bool = False  # and has its models
    to_load: set[int] = field(default_factory=set)  # before it is ready
    loading: int = -1  # the model that it is loading just now
    loading_for: Time = 0  # so long
    fatal_loads: Counter[int] = field(default_factory=Counter)  # by model: loads that ended the process
    started: Time = 0
    startup_time: Time = 0  # from its last start until it was ready; 0: it never was
    pause: Time = 0  # before its last start
    broken: WorkerBroken | None = None  # what the process said of its own end
    batch: int = -1  # the batch that it held at the last look, and for how long by then
    batch_held_for: Time = 0

    def may_load(self, model: int) -> bool:
        return self.fatal_loads[model] < LOADS

    def expected_at(self, now: Time) -> Time:
        """Return when a worker that starts can be expected to be ready."""
        planned = self.started + self.startup_time
        return planned if now <= planned else now + round(OVERDUE_SHARE * (now - self.started))

    def is_down(self) -> None:
        """Forget what only a process could be, or do."""
        self.up = self.ready = False
        self.to_load.clear()

    def take_loss(self, death: Death) -> Loss:
        """Return how a worker was lost; what it said of its own end tells more than how its process ended."""
        broken = self.broken
        self.broken = None
        return Loss(*death) if broken is None else Loss(broken.error, True, broken.tag)

    def pause_after(self, life: Time, by_a_model: bool, late: Time) -> Time:
        """Return how long not to start a worker that has died, *by_a_model* that it ran or loaded.

        A frontend that is *late* would start it in a bad moment.
        """
        if by_a_model:
            return late if life > GOOD_LIFE_OF_BLAMELESS else max(FIRST_PAUSE, late)
        doubled = min(max(2 * self.pause, FIRST_PAUSE), LONGEST_PAUSE)
        pause = FIRST_PAUSE if life > GOOD_LIFE else doubled
        return min(max(pause, late), LONGEST_PAUSE)
