"""A policy of ours can decide how wide the trials of Ray Tune's own loop are.

Ray Tune's ResourceChangingScheduler asks whenever a trial reports, and about that trial only. Each time, a
state is made of what its trials hold, and the policy is asked what it would change. Its changes of other
trials wait until those report. A change costs seconds in Ray Tune (a checkpoint, a new placement group and a
new process), which the policy weighs: the mean of those that were seen; until then, what the caller believes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from astrarium.core.choice import as_choice, chosen
from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra
from astrarium.core.quantities import SECOND
from astrarium.tuning.contract import GpusChanged, GroupArrived, Put, RuntimeMeasured, Trial
from astrarium.tuning.live.estimates import Estimates
from astrarium.tuning.policies import DEFAULT_POLICY, TuningPolicy, tuning_policies
from astrarium.tuning.runtime import Place, Runtime, Width
from astrarium.tuning.state import TuningState

if TYPE_CHECKING:
    from ray.tune.execution.placement_groups import PlacementGroupFactory
    from ray.tune.schedulers import ResourceChangingScheduler
from astrarium.tuning.ray_tune.resources import factory, width_of

MOVING = 5.0  # seconds that a change costs, until some were seen
Iterations = int | Callable[[Mapping[str, Any]], int]


class _LiveTrial(NamedTuple):
    """A live trial of Ray Tune has not ended; *held* is None while it waits to be started."""

    number: int
    left: int  # iterations
    held: Width | None


class Allocation:
    """The allocation is the function that a ResourceChangingScheduler wants. *iterations*: what a trial has
    when it is done, or how to tell from its configuration. *packing* and *scaling* are the assumed overheads
    of one more trial on a GPU and of one more GPU for a trial."""

    metric: str | None = None  # Ray Tune sets both
    mode: str | None = None

    def __init__(
        self,
        iterations: Iterations,
        policy: Any = DEFAULT_POLICY,
        gpus: int | None = None,
        packing: float = 1.05,
        scaling: float = 1.05,
        moving: float = MOVING,
    ) -> None:
        choice = as_choice(policy, tuning_policies, DEFAULT_POLICY)
        if choice is None:
            raise InputError(
                "policy", policy, "a name, name:key=value or a mapping: it is made anew each time"
            )
        self._policy = choice
        self._iterations = iterations
        self._gpus = gpus
        self._moving = moving
        self._usual = Runtime(SECOND, packing, scaling)
        self._estimates = Estimates(self._usual)
        self._numbers = dict[str, int]()
        self._widths: dict[str, Width] = {}  # at which trials have reported last
        self._promised: dict[str, Width] = {}
        self._promised_at: dict[str, float] = {}
        self._costs: list[float] = []
        self._new_policy()

    @property
    def moving(self) -> float:
        """Return the seconds that a change costs."""
        return sum(self._costs) / len(self._costs) if self._costs else self._moving

    def __call__(
        self, controller: Any, trial: Any, result: Mapping[str, Any], scheduler: Any
    ) -> PlacementGroupFactory | None:
        if getattr(controller, "_reuse_actors", False):
            raise InputError("reuse_actors", True, "false: a trial's actor ends where its resources change")
        self._learn(trial, result)
        there = controller._resource_updater
        trials = controller.get_live_trials()
        live = [self._live(other, result if other is trial else other.last_result) for other in trials]
        gpus = int(there.get_num_gpus()) if self._gpus is None else self._gpus
        width = self._chosen(self._number(trial.trial_id), [other for other in live if other.left > 0], gpus)
        if width is None:
            return None
        resources = factory(scheduler.base_trial_resources, width)
        if _cpus([resources, *_others(controller, trial)]) > there.get_num_cpus():
            return None  # it would wait for ever
        self._promised[trial.trial_id] = width
        self._promised_at[trial.trial_id] = time.monotonic()
        return resources

    def _learn(self, trial: Any, result: Mapping[str, Any]) -> None:
        took = float(result["time_this_iter_s"])
        promised_at = self._promised_at.pop(trial.trial_id, None)
        self._promised.pop(trial.trial_id, None)
        if promised_at is not None:  # it has moved, and this is its first iteration there
            self._costs.append(max(0.0, time.monotonic() - promised_at - took))
        width = width_of(trial.placement_group_factory)
        number = self._number(trial.trial_id)
        first = self._widths.get(trial.trial_id) != width
        self._widths[trial.trial_id] = width
        self._estimates.seen(number, width.numerator, width.denominator, round(took * SECOND), first)

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _live(self, trial: Any, result: Mapping[str, Any] | None) -> _LiveTrial:
        total = self._iterations if isinstance(self._iterations, int) else self._iterations(trial.config)
        held = self._promised.get(trial.trial_id)
        if held is None and trial.status == "RUNNING":
            held = width_of(trial.placement_group_factory)
        left = total - int((result or {}).get("training_iteration", 0))
        return _LiveTrial(self._number(trial.trial_id), left, held)

    def _chosen(self, number: int, live: Sequence[_LiveTrial], gpus: int) -> Width | None:
        """Return how wide the trial should be from now on; None: as it is. No trial changes while another
        waits to be started: Ray Tune lets those go first, and a paused trial would wait for all of them."""
        if any(trial.held is None for trial in live):
            return None
        state = TuningState(round(self.moving * SECOND), self._usual)
        state.apply(0, GpusChanged(tuple(range(gpus))))
        for candidate, runtime in self._estimates.all().items():
            state.apply(0, RuntimeMeasured(candidate, runtime))
        if not _placed(state, live):
            return None  # GPUs are gone that Ray Tune has not missed yet
        actions = Engine(state, self._new_policy()).step(0, [])
        puts = {action.trial: action.place.width for action in actions if isinstance(action, Put)}
        return puts.get(number)

    def _new_policy(self) -> TuningPolicy:
        policy: TuningPolicy = chosen(tuning_policies, self._policy)
        return policy


def resource_changing(
    base: Any,
    iterations: Iterations,
    policy: Any = DEFAULT_POLICY,
    *,
    gpus: int | None = None,
    packing: float = 1.05,
    scaling: float = 1.05,
    moving: float = MOVING,
) -> ResourceChangingScheduler:
    """Return a scheduler for Ray Tune's own loop: *base*, and trials as wide as a policy of ours says.

    *iterations*: what a trial has when it is done, or how to tell from its config. *policy*: a name, a spec
    or a mapping. *gpus*: so many, or all of Ray's. *packing* and *scaling*: what one more trial on a GPU, and
    one more GPU for a trial, is believed to cost; *moving*: seconds that a change costs, until some were
    seen. A *base* that would come to a standstill is refused.
    """
    with from_extra("tune"):
        from ray.tune.schedulers import HyperBandScheduler, ResourceChangingScheduler
    if isinstance(base, HyperBandScheduler | ResourceChangingScheduler):
        expected = (
            "FIFOScheduler, ASHAScheduler or PopulationBasedTraining. A trial whose resources change is"
            " paused, and this one lets only those go on that it has paused itself: all would wait for ever."
            " For synchronous rungs, use astrarium.tuning.ray_tune.fit with search='successive-halving' or"
            " 'hyperband'"
        )
        raise InputError("base", type(base).__name__, expected)
    return ResourceChangingScheduler(base, Allocation(iterations, policy, gpus, packing, scaling, moving))


def _placed(state: TuningState, live: Sequence[_LiveTrial]) -> bool:
    """Place all trials; return False where they do not fit. Ray does not put parts of GPUs together, so each
    is taken to be on a GPU of its own where possible."""
    state.apply(0, GroupArrived(0, tuple(Trial(trial.number, 0, trial.number, trial.left) for trial in live)))
    for trial in sorted(live, key=lambda trial: -(trial.held or 0)):
        place = _roomiest(state, trial.number, trial.held or Width(1))
        if place is None:
            return False
        state.commit(0, Put(trial.number, place))
    return True


def _roomiest(state: TuningState, trial: int, width: Width) -> Place | None:
    strips = state.strips
    if width >= 1 or not strips.holders:
        return strips.find(width, trial)
    gpu = max(strips.holders, key=lambda gpu: (strips.free_share(gpu), -gpu))
    place = Place((gpu,), width.denominator)
    return place if strips.fits(trial, place) else None


def _others(controller: Any, trial: Any) -> list[Any]:
    live = controller.get_live_trials()
    return [
        other.placement_group_factory for other in live if other is not trial and other.status == "RUNNING"
    ]


def _cpus(factories: Iterable[Any]) -> float:
    return sum(float(factory.required_resources.get("CPU", 0)) for factory in factories)
