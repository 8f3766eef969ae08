"""A live search prints how it is doing: in a picture that changes where somebody watches, else in a log."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from astrarium.tuning.live.loop.live_tuning import LiveTuning
from astrarium.tuning.live.view import status, view
from astrarium.tuning.report.tables import LINE, configuration, last_line

SELDOM = 10.0  # seconds between lines of a log
REDRAWN = 0.25  # seconds between two pictures
OFTEN = 1.0  # seconds between lines that tell of another best candidate, at least
MOST_FAILURES = 5  # that are printed one by one


class SearchProgress:
    """*show* is called with the live run after each of its steps. A better candidate is printed at once.

    With a *label*, a terminal has a picture that changes; without one, there are lines of a log only.
    """

    def __init__(self, label: str = "") -> None:
        self._label = label
        self._due = 0.0
        self._began: float | None = None  # when the first step was over: processes take a while to come up
        self._best: int | None = None  # the candidate that was printed as the best
        self._best_due = 0.0
        self._failed = 0  # failed candidates that were printed
        self._picture: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._picture is not None:
            self._picture.stop()

    def show(self, live: LiveTuning) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = now
            self._begin()
        seconds = now - self._began
        self._tell_failures(live, seconds)
        self._tell_best(live, seconds)
        if seconds >= self._due:
            self._due = seconds + (SELDOM if self._picture is None else REDRAWN)
            self._show_status(live, seconds)

    def _show_status(self, live: LiveTuning, seconds: float) -> None:
        if self._picture is None:
            self._print(f"{seconds:8.1f}s  {status(live)}")
        else:
            self._picture.update(view(self._label, live, seconds), refresh=True)

    def _begin(self) -> None:
        """Begin the picture that changes, not before there is something to show."""
        if self._label and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._picture = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._picture.start()

    def _tell_best(self, live: LiveTuning, seconds: float) -> None:
        """Print the best when it is another candidate: one that gets better shows in the status."""
        if not live.session.best or live.session.best[-1].candidate == self._best:
            return
        if seconds < self._best_due and not live.over:
            return
        self._best_due = seconds + OFTEN
        best = live.session.best[-1]
        values = configuration(live.session.candidates[best.candidate].configuration.values)
        self._print(f"{seconds:8.1f}s  best {best.value:.5g}, candidate {best.candidate}: {values}")
        self._best = best.candidate

    def _tell_failures(self, live: LiveTuning, seconds: float) -> None:
        """Print the first few failures: whoever watches may want to stop, and mend something."""
        failed = list(live.session.failed.items())
        for number, reason in failed[self._failed : MOST_FAILURES]:
            self._print(f"{seconds:8.1f}s  candidate {number} failed: {last_line(reason, LINE)}")
        self._failed = len(failed)

    def _print(self, text: str) -> None:
        if self._picture is not None:
            self._picture.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)
