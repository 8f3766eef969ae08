"""Policies begin with measured delays, and give way to fresh ones where reality has drifted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from astrarium.core.quantities import MILLISECOND, Time
from astrarium.server.control.calls.ticket import KeptGpu
from astrarium.server.control.coordinator import Coordinator
from astrarium.server.control.health.bounds import around, tightest
from astrarium.server.control.health.calibration import Calibration
from astrarium.server.control.health.drift_watch import DriftWatch
from astrarium.server.control.plan import ServingPlan
from astrarium.server.control.repository import Repository
from astrarium.serving.contract import Lengths, ModelSpec, Network, Setup, Together

_DELAYS_CUT = (
    "delays of %(measured_ms).2f ms were measured, and the objective of model %(model)s leaves "
    "%(planned_ms).2f ms for them: answers may be late"
)
log = logging.getLogger("astrarium.service")


class Replanner:
    """The replanner begins the first policy, and a fresh one when batches or delays have drifted."""

    def __init__(
        self,
        plan: ServingPlan,
        coordinator: Coordinator,
        repository: Repository,
        calibration: Calibration,
        clock: Callable[[], Time],
    ) -> None:
        self._plan = plan
        self._coordinator = coordinator
        self._repository = repository
        self._calibration = calibration
        self._clock = clock
        pinged = self._measured_delays if plan.measured_delays else None
        self._drift = DriftWatch(plan.setup, clock(), pinged)
        coordinator.accounts.batch_listeners.append(self.saw)

    @property
    def revisions(self) -> int:
        return self._drift.revisions

    async def begin(self) -> None:
        """Begin the first policy; delays are measured where the scenario does not say them."""
        measured = await self._delays()
        self._coordinator.begin(self._as_tried(replace(self._plan.setup, network=measured)))
        if self._coordinator.setup.network != measured:
            shown = {
                "measured_ms": around(measured) / MILLISECOND,
                "planned_ms": around(self._coordinator.setup.network) / MILLISECOND,
                "model": tightest(self._plan.setup).name,
            }
            log.warning(_DELAYS_CUT, shown, extra=shown)

    def begin_anew(self) -> None:
        """Let a policy that learnt something wrong in a bad moment give way to one that has not."""
        self._coordinator.begin(self._coordinator.setup)

    def saw(self, model: int, batches: Sequence[KeptGpu]) -> None:
        """Show batches to the drift watch, but for those that ran before all of their model was there."""
        entry = self._repository.entries[model]
        self._drift.saw(model, [batch for batch in batches if entry.whole(batch.finished)])

    def follow_drift(self) -> None:
        present = self._coordinator.setup
        revised = self._drift.revised(present, self._clock())
        if revised is not None:
            delays = revised.network.control / MILLISECOND, revised.network.response / MILLISECOND
            log.info("batches or delays have drifted; now control %.2f ms, response %.2f ms", *delays)
        if (tried := self._as_tried(revised or present)) != present:
            self._coordinator.begin(tried)

    def _as_tried(self, setup: Setup) -> Setup:
        """Return a setup in which models whose answers change by padding run equal lengths only.

        Another version of a model may take padding well: then it runs as its profile says again.
        """
        planned = [spec.lengths for spec in self._plan.setup.models]
        triples = zip(setup.models, planned, self._repository.entries, strict=True)
        return replace(
            setup, models=tuple(_as_tried(spec, own, entry.padding[0]) for spec, own, entry in triples)
        )

    async def _delays(self) -> Network:
        if not self._plan.measured_delays:
            return self._plan.setup.network
        await self._calibration.measure(sorted(self._coordinator.present))
        return self._measured_delays()

    def _measured_delays(self) -> Network:
        """Return what messages take, and on the way there also the inputs.

        Where inputs travel while the batch before is computed, its end is heard late too: by as much the
        next one must leave earlier, or the GPU would wait for it.
        """
        delays = self._calibration.delays()
        first, further = self._repository.lead
        heard_late = delays.response if first else 0
        return replace(delays, control=delays.control + first + heard_late, data=further)


def _as_tried(spec: ModelSpec, planned: Lengths | None, padding: str) -> ModelSpec:
    if spec.lengths is None or planned is None:
        return spec
    together: Together = "length" if padding == "changes" else planned.together
    return replace(spec, lengths=replace(spec.lengths, together=together))
