"""The failure watch finds models that fail every call, and says when to try whether they are well again.

A model that has answered nothing but failures for a while (its own errors, and workers that it lost) is not
ready: its clients are refused, since trying costs the GPU time of others. It is tried out by a made-up call
of the server's own, at once and then with growing pauses, and a client's call is let through as often: what
is made up may fail where real inputs would not. The first answer to either makes it ready again.

Where made-up calls are answered and clients' calls go on failing, each time that the model is found failing
lasts longer than the one before, until a client has an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from astrarium.core.quantities import SECOND, Time
from astrarium.server.control.accounts.causes import MODEL_ERROR, WORKER_LOST
from astrarium.server.control.accounts.model_accounts import ModelAccounts

FEWEST_FAILED = 10  # calls in a row: one client with a bad value or two is not everybody
WHILE = 5 * SECOND  # a worker that dies takes a few calls with it and is back in less
# between trials
FIRST_PAUSE = 2 * SECOND
LONGEST_PAUSE = 60 * SECOND
CAUSES = MODEL_ERROR, WORKER_LOST  # of failures that say something of the model


class FailureWatch:
    """A failure watch looks at the accounts now and then; `ModelAccounts.failing` holds what it finds."""

    def __init__(self, accounts: Sequence[ModelAccounts], now: Time) -> None:
        self._rows = [_FailedCalls(one, now) for one in accounts]

    def look(self, now: Time) -> Iterator[int]:
        """Return the models of which the watch says something else than before."""
        for model, row in enumerate(self._rows):
            was_failing = bool(row.accounts.failing)
            row.look(now)
            if bool(row.accounts.failing) != was_failing:
                yield model

    def due(self, now: Time) -> Iterator[int]:
        """Return the models that are to be tried now; `tried` must be told of each what came of it."""
        for model, row in enumerate(self._rows):
            if row.accounts.failing and not row.under_trial and now >= row.try_at:
                row.under_trial = True
                yield model

    def tried(self, model: int, why: str, now: Time) -> bool:
        """Hear why a trial failed, or that it was answered (empty); return whether that makes it ready."""
        return self._rows[model].tried(why, now)

    def not_tried(self, model: int, now: Time) -> None:
        """Hear that no call of ours could be taken: there is no worker, or too much to do."""
        row = self._rows[model]
        row.under_trial = False
        row.try_at = now + FIRST_PAUSE

    def lets_through(self, model: int, now: Time) -> bool:
        """Whether a client's call may be tried, although the model fails."""
        return now >= self._rows[model].let_through_at

    def let_through(self, model: int, now: Time) -> None:
        """Hear that a client's call was taken; while the model fails, it is some time until the next."""
        row = self._rows[model]
        if row.accounts.failing:
            row.let_through_at = now + row.pause

    def forget(self, model: int, now: Time) -> None:
        """Forget all failures of a model: it was loaded anew."""
        row = self._rows[model]
        row.accounts.failing = ""
        row.begin(now)
        row.pause = 0


class _FailedCalls:
    """The failed calls of one model since its last answer are counted here."""

    def __init__(self, accounts: ModelAccounts, now: Time) -> None:
        self.accounts = accounts
        self.under_trial = False
        self.pause: Time = 0  # 0: there was no reason to try it since its last answer to a client
        self.try_at = self.let_through_at = now
        self.begin(now)

    def begin(self, now: Time) -> None:
        self._answered = self.accounts.success.count
        self._before = _failures(self.accounts)
        self._failed = 0
        self._began = now

    def look(self, now: Time) -> None:
        if self.accounts.success.count != self._answered:
            self.accounts.failing = ""
            self.pause = 0
            self.begin(now)
            return
        failed = _failures(self.accounts) - self._before
        self._began = self._began if self._failed else now
        self._failed = failed.total()
        if not self.accounts.failing and self._failed >= FEWEST_FAILED and now - self._began >= WHILE:
            self._found_failing([cause for cause in CAUSES if failed[cause]], now)

    def _found_failing(self, causes: Sequence[str], now: Time) -> None:
        self.accounts.failing = f"all of the last {self._failed} calls failed ({', '.join(causes)})"
        # At once, unless that may cost a worker, or a trial was answered since and clients were not.
        self.try_at = now + max(self.pause, FIRST_PAUSE if WORKER_LOST in causes else 0)
        self.pause = min(2 * self.pause or FIRST_PAUSE, LONGEST_PAUSE)
        self.let_through_at = now + self.pause

    def tried(self, why: str, now: Time) -> bool:
        self.under_trial = False
        if not self.accounts.failing:
            return False  # a client had an answer meanwhile, or the model was loaded anew
        if why:
            self.accounts.failing = f"all of the last {self._failed} calls failed, and so did a trial: {why}"
            self.try_at = now + self.pause
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
            return False
        self.accounts.failing = ""
        self.begin(now)
        return True


def _failures(accounts: ModelAccounts) -> Counter[str]:
    return Counter({cause: accounts.ended["failed", cause] for cause in CAUSES})
