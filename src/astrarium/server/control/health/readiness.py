"""A loaded model that refuses everybody or fails every call is not ready; trials test whether it is again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from astrarium.core.quantities import Time
from astrarium.server.contract import Refused
from astrarium.server.control.accounts.accounts import Accounts
from astrarium.server.control.calls.handler import CallHandler
from astrarium.server.control.health.failure_watch import FailureWatch
from astrarium.server.control.health.refusal_watch import RefusalWatch
from astrarium.server.control.replanning import Replanner
from astrarium.server.control.repository import Entry, Repository

log = logging.getLogger("astrarium.service")


class Readiness:
    """Readiness copies what the watches find into the repository, and calls *changed*."""

    def __init__(
        self,
        accounts: Accounts,
        repository: Repository,
        calls: CallHandler,
        failures: FailureWatch,
        replanner: Replanner,
        clock: Callable[[], Time],
        changed: Callable[[], None],
    ) -> None:
        self._accounts = accounts.models
        self._repository = repository
        self._calls = calls
        self._failures = failures
        self._refusals = RefusalWatch(accounts.models, clock())
        self._replanner = replanner
        self._clock = clock
        self._changed = changed
        self.trials: set[asyncio.Task[None]] = set()

    def look_for_refusals(self) -> None:
        for model in self._refusals.look(self._clock()):
            entry = self._repository.entries[model]
            entry.refusing = self._accounts[model].refusing
            shown = {"model": entry.plan.name, "reason": entry.refusing}
            if entry.refusing:
                log.warning("model %(model)s is not ready: %(reason)s; planning anew", shown, extra=shown)
                self._replanner.begin_anew()
            else:
                log.info("model %(model)s no longer turns away all calls", shown, extra=shown)

    def look_for_failures(self) -> None:
        now = self._clock()
        for model in self._failures.look(now):
            self._log_failing(self._repository.entries[model], "a client's call was answered")
        for model in self._failures.due(now):
            trial = asyncio.get_running_loop().create_task(self._try_out(self._repository.entries[model]))
            self.trials.add(trial)
            trial.add_done_callback(self.trials.discard)

    def loaded_anew(self, entry: Entry) -> None:
        self._failures.forget(entry.plan.index, self._clock())
        self._show_failing(entry)

    async def _try_out(self, entry: Entry) -> None:
        """Find out by a made-up call whether a model that failed every call works again."""
        try:
            why = await self._calls.try_out(entry)
        except Exception as error:  # nothing was tried, and the next trial comes all the same
            self._failures.not_tried(entry.plan.index, self._clock())
            if not isinstance(error, Refused):
                log.exception("a trial call of model %s failed", entry.plan.name)
            return
        if self._failures.tried(entry.plan.index, why, self._clock()):
            self._log_failing(entry, "a trial call was answered")
        else:
            self._show_failing(entry)

    def _log_failing(self, entry: Entry, why_ready: str) -> None:
        """Say in the log that a model fails every call, or no longer does; let network threads know."""
        self._show_failing(entry)
        shown = {"model": entry.plan.name, "reason": entry.failing or why_ready}
        if entry.failing:
            log.warning("model %(model)s is not ready: %(reason)s; it will be tried", shown, extra=shown)
        else:
            log.info("model %(model)s is ready again: %(reason)s", shown, extra=shown)
        self._changed()

    def _show_failing(self, entry: Entry) -> None:
        entry.failing = self._accounts[entry.plan.index].failing
