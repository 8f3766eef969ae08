"""Client errors are what clients do that is no call: they are counted, and logged sparingly by address."""

from __future__ import annotations

import logging
from collections import Counter

from astrarium.server.process.descriptors import limit_of_descriptors
from astrarium.server.process.logs import ThrottledWarnings

# so many lines a minute, whatever clients send
MINUTE = 60.0
A_FEW = 5
log = logging.getLogger("astrarium.clients")


class ClientErrors:
    """One for each service: all protocols tell it, and the metrics show it."""

    def __init__(self) -> None:
        self.bad_requests: Counter[str] = Counter()  # by the status that they were answered with
        self.turned_away = 0  # connections for which there was no descriptor
        self._bad = ThrottledWarnings(log, MINUTE, burst=A_FEW)
        self._crowded = ThrottledWarnings(log, MINUTE)

    def bad_request(self, client: str, status: int, reason: str) -> None:
        """Note what a client sent that is no request."""
        self.bad_requests[str(status)] += 1
        self._bad.warning("a client at %s got %d: %s", client, status, reason)

    def no_descriptor(self, connections: int = 1) -> None:
        """Note connections that were closed at once because there is no descriptor for them."""
        self.turned_away += connections
        if connections:
            self._crowded.warning(
                "%d connections were turned away since the start: ulimit -n is %d, and nearly all are used; "
                "raise it (ulimit -n 65536 before the server is started)",
                self.turned_away,
                limit_of_descriptors(),
            )
