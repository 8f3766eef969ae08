"""Our own tuning policy, which no paper has, ends a group soonest, or makes most progress where each result
counts.

Where one group is open and all of it came at once, its search waits for the last trial: widths are those with
which all trials end soonest, by a forward estimate that knows packing, queues, spreading and what moves cost
(`barrier`). The policy plans again whenever something is learnt of a trial, not only when GPUs are idle: a
candidate that turns out to be slow is spread at its second iteration, and others make room for it.

Where trials join a group that runs, or several groups are open, each result counts, and widths are those that
make most progress, with more weight on candidates that have come far (`progress`). Fluid gives GPUs in
proportion to what is left to do there: short trials crowd on a few GPUs, and long ones take several for
little. Running trials are not made narrower unless a GPU is idle: they end soon, and a move costs more than
it brings. The price: on many GPUs, where Fluid's crowding leaves some idle, a trial that ASHA promotes may
find less room than there, and the target may be reached a little later (`reproduce astrarium/tuning` has the
cases).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from astrarium.core.quantities import Time
from astrarium.tuning.contract import Action, Event, GpusChanged, GroupArrived, Put, RuntimeMeasured
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.policies._widths import ends_sooner, why_there, widest
from astrarium.tuning.policies.astrarium.barrier import WidthPlan, soonest, topped_up
from astrarium.tuning.policies.astrarium.options import TrialOptions, trial_options, trials_per_gpu
from astrarium.tuning.policies.astrarium.progress import most_progress
from astrarium.tuning.runtime import Place, Width
from astrarium.tuning.state import TrialRow, TuningState

WORTH = 0.03  # of the time to the end of a group: what a new plan must save at least


@tuning_policies.register("astrarium")
class Astrarium:
    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Neither packing nor spreading goes further than it is believed to pay."""

        packed: Annotated[
            int, msgspec.Meta(ge=1, description="trials on one GPU at most: what its memory holds")
        ] = 4
        spread: Annotated[int, msgspec.Meta(ge=1, description="GPUs for one trial at most")] = 8
        favour: Annotated[
            float,
            msgspec.Meta(
                ge=0, le=2, description="how much more those count who have come far; 0: not at all"
            ),
        ] = 0.5

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._plan = WidthPlan(0.0, {})  # `end` is an instant here
        self._trials_per_gpu = 0  # as estimated when that plan was made
        self._came: set[int] = set()  # groups of which trials came
        self._joined: set[int] = set()  # groups of which trials came later

    def decide(self, now: Time, events: Sequence[Event], state: TuningState) -> Iterator[Action]:
        new = self._hear(events)
        if not state.gpus or not state.open:
            return
        if state.waiting() and (new or self._plan_is_stale(now, events, state)):
            self._plan = self._new_plan(now, state)
            self._trials_per_gpu = trials_per_gpu(self._options(now, state))
        yield from self._start_waiting(now, state)
        if not state.waiting():
            yield from self._resize_running(now, state)

    def _hear(self, events: Sequence[Event]) -> bool:
        """Remember which groups came and were joined; tell whether there is something new to plan for."""
        arrived = [event.group for event in events if type(event) is GroupArrived]
        self._joined |= self._came & set(arrived)
        self._came |= set(arrived)
        return bool(arrived) or any(type(event) is GpusChanged for event in events)

    def _plan_is_stale(self, now: Time, events: Sequence[Event], state: TuningState) -> bool:
        """Tell whether a waiting trial was never planned for, or not as many can share a GPU as was
        believed."""
        if any(row.trial.id not in self._plan.widths for row in state.waiting()):
            return True
        measured = any(type(event) is RuntimeMeasured for event in events)
        return measured and trials_per_gpu(self._options(now, state)) != self._trials_per_gpu

    def _each_counts(self, state: TuningState) -> bool:
        groups = {row.trial.group for row in state.open.values()}
        return len(groups) > 1 or bool(groups & self._joined)

    def _new_plan(self, now: Time, state: TuningState) -> WidthPlan:
        trials = self._options(now, state)
        if self._each_counts(state):
            return WidthPlan(float("inf"), most_progress(trials, state.gpus, self.parameters.favour))
        plan = soonest(trials, state.gpus)
        return WidthPlan(now + plan.end, plan.widths)

    def _options(self, now: Time, state: TuningState) -> list[TrialOptions]:
        packed = self.parameters.packed
        spread = self.parameters.spread
        return [trial_options(now, row, state.gpus, state, packed, spread) for row in state.open.values()]

    def _start_waiting(self, now: Time, state: TuningState) -> Iterator[Put]:
        widths = self._plan.widths
        for row in sorted(state.waiting(), key=lambda row: -widths[row.trial.id]):
            place = self._place(now, row, widths[row.trial.id], state)
            if place is not None:
                why = f"{why_there(row, place.width)}; {self._why(state)}"
                yield Put(row.trial.id, place, why)

    def _place(self, now: Time, row: TrialRow, width: Width, state: TuningState) -> Place | None:
        """Return the planned place for a waiting trial, or a smaller one on which it ends in time."""
        place = widest(state, row.trial.id, width)
        if place is not None or width < 1:
            return place
        for parts in range(2, self.parameters.packed + 1):
            if now + state.time_left(now, row, Width(1, parts)) <= self._plan.end:
                place = place or state.strips.find(Width(1, parts), row.trial.id)
        return place

    def _why(self, state: TuningState) -> str:
        return "each result counts" if self._each_counts(state) else "so all of the group end soonest"

    def _resize_running(self, now: Time, state: TuningState) -> Iterator[Put]:
        """Change running trials where GPUs are idle, or where all would end sooner by more than the moves
        cost."""
        each_counts = self._each_counts(state)
        if each_counts and not state.strips.idle:
            return
        plan = self._new_plan(now, state)
        as_is = max(_left(now, row, state) for row in state.running())
        settled = [row for row in state.running() if row.settled]
        least = max(WORTH * as_is, state.moving) + _until_free(now, settled, plan, state)
        if not each_counts and as_is - (plan.end - now) <= least:
            plan = self._unchanged_plan(now, state)
        yield from self._narrower(settled, plan, state)
        yield from self._wider(now, settled, plan, state)

    def _unchanged_plan(self, now: Time, state: TuningState) -> WidthPlan:
        """Return a plan that makes nobody narrower: idle GPUs go to the trials that would end last."""
        trials = self._options(now, state)
        return WidthPlan(0.0, topped_up(trials, state.gpus, {trial.trial: trial.has for trial in trials}))

    def _narrower(self, rows: Sequence[TrialRow], plan: WidthPlan, state: TuningState) -> Iterator[Put]:
        for row in sorted(rows, key=lambda row: plan.widths[row.trial.id]):
            width = plan.widths[row.trial.id]
            has = _width(row)
            place = state.strips.find(width, row.trial.id) if width < has else None
            if place is not None:
                yield Put(row.trial.id, place, f"narrower than {has}: others would end later")

    def _wider(
        self, now: Time, rows: Sequence[TrialRow], plan: WidthPlan, state: TuningState
    ) -> Iterator[Put]:
        """Make trials wider; while others make way, only to the full width: they would move twice."""
        making_way = any(row.going is not None and row.going.width < _width(row) for row in state.running())
        for row in sorted(rows, key=lambda row: -_left(now, row, state)):
            width = plan.widths[row.trial.id]
            has = _width(row)
            if width > has:
                place = widest(state, row.trial.id, width, width - 1 if making_way else has)
                if place is not None and ends_sooner(now, row, place.width, state):
                    yield Put(row.trial.id, place, f"wider than {has}: {self._why(state)}")


def _width(row: TrialRow) -> Width:
    return row.place.width if row.place is not None else Width(0)


def _left(now: Time, row: TrialRow, state: TuningState) -> float:
    """Return the time left at the place where the trial is, or is about to go."""
    place = row.going or row.place
    assert place is not None
    return state.time_left(now, row, place.width)


def _until_free(now: Time, rows: Sequence[TrialRow], plan: WidthPlan, state: TuningState) -> float:
    """Return the time until trials that are made narrower have left their GPUs: to the end of iterations."""
    leaving = [row for row in rows if plan.widths[row.trial.id] < _width(row)]
    return max((state.left(now, row) % 1 * state.runtime(row).at(_width(row)) for row in leaving), default=0)
