"""The coordinator stands between the native scheduler, which decides on calls, and what Python does for it.

call -> open calls (shared memory, a number) -> native scheduler (policy) -> worker
worker -> native scheduler -> open calls -> answer

Calls that network threads have read never come here: what was counted of them is brought into the accounts by
`sync`. Those that Python has read are handed to the native scheduler, which treats all calls alike, and come
back when they have ended. The policy is a native twin, or is asked in Python (`python_policy`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from astrarium.core.optional import extension
from astrarium.core.quantities import SECOND, Time
from astrarium.server.control.accounts.accounts import Accounts
from astrarium.server.control.calls.open_calls import OpenCalls
from astrarium.server.control.calls.ticket import EndedBatch
from astrarium.server.control.health.bounds import bounded
from astrarium.server.control.health.calibration import Calibration
from astrarium.server.control.plan import ServingPlan
from astrarium.server.control.python_policy import Recorder, policy_maker
from astrarium.server.control.repository import Repository
from astrarium.server.control.workers.blame import Blame, Loss
from astrarium.server.control.workers.fleet import Fleet
from astrarium.serving.contract import Setup
from astrarium.serving.live.messages import BatchesSlow, ModelNews, Pong
from astrarium.serving.live.process import Death
from astrarium.serving.twin.live import LiveTwin
from astrarium.serving.twin.native import native_setup

if TYPE_CHECKING:
    from astrarium._scheduler import Scheduler

THINKS_TOO_LONG = 5 * SECOND  # a policy in Python, on one decision; then the server is not ready
log = logging.getLogger("astrarium.control")


class QuarantinedInput(NamedTuple):
    """An input is held from *since* until *until* (monotonic clock) for what it did."""

    model: int
    digest: int
    since: Time
    until: Time
    reason: str


class Coordinator:
    """All who read calls ask the *admission*. A *recorder* notes what the policy hears and decides."""

    def __init__(
        self,
        plan: ServingPlan,
        scheduler: Scheduler,
        open_calls: OpenCalls,
        clock: Callable[[], Time],
        recorder: Recorder | None = None,
    ) -> None:
        self.plan = plan
        self.open_calls = open_calls
        self.clock = clock
        self.admission = scheduler.admission
        self.setup = plan.setup
        self.accounts = Accounts([model.name for model in plan.models], len(plan.workers), clock)
        for model in plan.models:
            self.accounts.models[model.index].numbered = bool(model.sizes)
            self.accounts.models[model.index].packed = model.packed
        self.fleet: Fleet | None = None  # these three need a coordinator before they can be made
        self.repository: Repository | None = None
        self.calibration: Calibration | None = None
        self.present: set[int] = set()  # GPUs whose workers can run batches
        self.policy_errors = 0
        self._thinks_too_long = False
        self.began = False
        self._taking = True
        self._scheduler = scheduler
        self._recorder = recorder
        scheduler.profile(plan.profiled_share, random.getrandbits(64))

    def begin(self, setup: Setup) -> None:
        """Let a fresh policy decide from now on, with this setup, bounded; what waits goes over to it."""
        setup = bounded(setup, self.plan.setup)
        planned = native_setup(extension("_simulator"), setup)
        name = self.plan.policy_name
        if self.plan.python_policy:
            self._scheduler.begin_in_python(planned, name, policy_maker(self.plan, setup, self._recorder))
        else:
            self._scheduler.begin(planned, _twin(self.plan, setup).parameters)
        self.setup = setup
        self.began = True
        self._tell_admission()

    def close(self) -> None:
        """End everything that is open, calls whose inputs are still being made among it."""
        self.began = False
        self.takes_calls(False)
        self.open_calls.end_without_inputs()
        self._scheduler.close()
        self.collect()
        self.sync()

    def takes_calls(self, takes: bool) -> None:
        self._taking = takes
        self._tell_admission()

    def _tell_admission(self) -> None:
        """Tell those who read calls whether any are taken now, and when a worker will be there for them."""
        expected = 0 if self.present or self.fleet is None else self.fleet.back_at()
        self.admission.expect_worker(expected)
        self.admission.close(not (self._taking and self.began and (self.present or expected)))

    @property
    def expects_worker(self) -> bool:
        """Whether calls can be answered, now or as soon as a worker is back."""
        return bool(self.present) or (self.fleet is not None and self.fleet.back_at() > 0)

    def answered(self, model: int, batch: EndedBatch, now: Time) -> None:
        self.admission.answered(model, now - batch.planned_end - self.setup.network.response)

    def collect(self) -> None:
        """Hear which calls have ended, and which workers must be killed."""
        self.open_calls.collect()
        for worker, reason in self._scheduler.troubles():
            if self._fleet.workers is not None:
                self._fleet.workers.kill(worker, Death(reason, by_its_work=False))

    @property
    def waiting(self) -> int:
        return self._scheduler.waiting()

    @property
    def cpu_time(self) -> Time:
        """Return the CPU time that the scheduler's thread has had."""
        return self._scheduler.cpu_ns()

    def worker_ready(self, worker: int) -> None:
        if worker < len(self.plan.workers):
            self.present.add(worker)
        self._scheduler.worker_joined(worker)
        self._tell_admission()

    def worker_lost(self, worker: int, loss: Loss) -> Blame | None:
        self.present.discard(worker)
        self._tell_admission()
        if self.repository is not None:
            self.repository.lost(worker, loss.reason)
        model, calls, certain = self._scheduler.worker_left(worker, *loss)
        return None if model < 0 else Blame(model, calls, certain)

    def oldest(self, worker: int) -> tuple[int, Time] | None:
        return self._scheduler.oldest(worker)

    def heard_until(self) -> Time:
        return self._scheduler.thinks_since() or self.clock()

    def thinking_for(self) -> Time:
        """Return how long a policy in Python has been deciding; 0 where none is."""
        since = self._scheduler.thinks_since()
        return self.clock() - since if since else 0

    def model_news(self, gpu: int, news: ModelNews) -> None:
        if isinstance(news, BatchesSlow):
            self.accounts.models[news.model].slow(news.split, news.beside_graphs)
            return
        assert self.repository is not None
        self.repository.heard(gpu, news)

    def pong(self, gpu: int, news: Pong) -> None:
        assert self.calibration is not None
        self.calibration.pong(news.sent, news.received, news.heard)

    def set_apart(self, model: int, workers: list[int]) -> None:
        self._scheduler.set_apart(model, workers)

    def quarantined(self) -> list[QuarantinedInput]:
        return [QuarantinedInput(*one) for one in self._scheduler.quarantined()]

    def release(self, model: int) -> int:
        return self._scheduler.release(model)

    def sync(self) -> None:
        """Bring what was counted elsewhere into the accounts, and what is expected to the admission."""
        self.accounts.sync(self._scheduler)
        if not self.present:
            self._tell_admission()
        errors, last = self._scheduler.policy_errors()
        if errors != self.policy_errors:
            log.error("the policy %s failed: %s", self.plan.policy_name, last)
        self.policy_errors = errors
        self._watch_policy()

    def _watch_policy(self) -> None:
        """Say once that a policy in Python does not come back from a decision."""
        before = self._thinks_too_long
        self._thinks_too_long = self.thinking_for() >= THINKS_TOO_LONG
        if self._thinks_too_long and not before:
            seconds = THINKS_TOO_LONG / SECOND
            log.error("the policy %s has thought for %g s: calls wait for it", self.plan.policy_name, seconds)

    def unaccounted(self) -> int:
        """Return how many calls are not where the accounts say that they are: 0, or there is a defect."""
        opened = self.accounts.open_in_python()
        return abs(opened - len(self.open_calls)) + self._scheduler.astray(opened)

    @property
    def _fleet(self) -> Fleet:
        assert self.fleet is not None, "the coordinator has no fleet yet"
        return self.fleet


def _twin(plan: ServingPlan, setup: Setup) -> LiveTwin:
    policy = plan.new_policy(setup)
    assert isinstance(policy, LiveTwin), "else the plan says why the policy is in Python"
    return policy
