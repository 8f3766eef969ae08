"""The refusal watch finds models that are loaded and refuse every call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astrarium.core.quantities import SECOND, Time
from astrarium.server.control.accounts.model_accounts import ModelAccounts

FEWEST_REFUSED = 10  # calls in a row: one client with bad luck is not everybody
WHILE = 10 * SECOND  # what overload turns away in a burst shorter than this says nothing of the model


class RefusalWatch:
    """A refusal watch looks at the accounts now and then; `ModelAccounts.refusing` holds what it finds."""

    def __init__(self, accounts: Sequence[ModelAccounts], now: Time) -> None:
        self._rows = [_RefusedCalls(one, now) for one in accounts]

    def look(self, now: Time) -> Iterator[int]:
        """Return the models of which the watch says something else than before."""
        for model, row in enumerate(self._rows):
            row.look(now)
            reason = row.reason(now)
            if bool(reason) != bool(row.accounts.refusing):
                row.accounts.refusing = reason
                yield model


class _RefusedCalls:
    """The refused calls of one model since its last answer are counted here."""

    def __init__(self, accounts: ModelAccounts, now: Time) -> None:
        self.accounts = accounts
        self._began = self._last = now
        self._answered = self._before = self._declined = 0

    def look(self, now: Time) -> None:
        if self.accounts.success.count != self._answered:
            self._begin(now)
        elif self.accounts.declined != self._declined:
            self._began = self._began if self._length else now
            self._declined = self.accounts.declined
            self._last = now
        elif now - self._last >= WHILE:
            self._begin(now)

    def reason(self, now: Time) -> str:
        """Return why the model is said to refuse everybody; empty where it is not."""
        if self._length < FEWEST_REFUSED or now - self._began < WHILE:
            return ""
        return f"it has turned away all of the last {self._length} calls ({self.accounts.declined_because})"

    @property
    def _length(self) -> int:
        return self._declined - self._before

    def _begin(self, now: Time) -> None:
        self._answered = self.accounts.success.count
        self._before = self._declined = self.accounts.declined
        self._began = self._last = now
