"""An interrupt ends a search that has begun, and leaves something to return."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from astrarium.run.pools import signals_to

INTERRUPTED = "it was interrupted"


class Interrupts(ExitStack):
    """Interrupts (Ctrl-C, or a request to end the job) pass through until they are held. Then the first one
    ends the search, and what it found is returned; the second passes through."""

    interrupted = False
    held = False

    def hold(self) -> None:
        """Hold interrupts from now on; only the main thread ever hears of them."""
        if not self.held and threading.current_thread() is threading.main_thread():
            self.enter_context(signals_to(self._interrupt))
        self.held = True

    def why(self) -> str:
        """Return why the search must end; empty where it need not."""
        return INTERRUPTED if self.interrupted else ""

    def _interrupt(self, *_: object) -> None:
        self.interrupted = True
        self.close()
