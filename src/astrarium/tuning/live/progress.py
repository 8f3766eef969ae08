"""A live search prints how it is doing: in a line that changes where somebody watches, else in a log."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from astrarium.tuning.live.loop.live_tuning import LiveTuning
from astrarium.tuning.report.tables import LINE, configuration, last_line
from astrarium.tuning.state import Outcome

SELDOM = 10.0  # seconds between lines of a log
OFTEN = 1.0  # seconds between lines that tell of another best candidate, at least
MOST_FAILURES = 5  # that are printed one by one


class SearchProgress:
    """*show* is called with the live run after each of its steps. A better candidate is printed at once.

    With a *label*, a terminal has a line that changes; without one, there are lines of a log only.
    """

    def __init__(self, label: str = "") -> None:
        self._label = label
        self._due = 0.0
        self._began: float | None = None  # when the first step was over: processes take a while to come up
        self._best: int | None = None  # the candidate that was printed as the best
        self._best_due = 0.0
        self._failed = 0  # failed candidates that were printed
        self._console: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._console is not None:
            self._console.stop()

    def show(self, live: LiveTuning) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = now
            self._begin()
        seconds = now - self._began
        self._tell_failures(live, seconds)
        self._tell_best(live, seconds)
        if self._console is not None:
            self._console.update(f"{self._label}: {seconds:.0f} s, {status(live)}")
        elif seconds >= self._due:
            self._due = seconds + SELDOM
            self._print(f"{seconds:8.1f}s  {status(live)}")

    def _begin(self) -> None:
        """Begin the line that changes, not before there is something to show."""
        if self._label and sys.stderr.isatty():
            from rich.console import Console

            self._console = Console(stderr=True).status(self._label)
            self._console.start()

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
        if self._console is not None:
            self._console.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)


def status(live: LiveTuning) -> str:
    """Return the trials done, running and waiting; iterations; GPUs that are held; the best so far."""
    state = live.state
    session = live.session
    rows = list(state.ledger.rows.values())
    done = sum(row.outcome is not Outcome.OPEN for row in rows)
    busy = sum((1 - state.strips.free_share(gpu) for gpu in state.strips.holders), start=0)
    iterations = sum(row.done for row in rows)
    best = f"best {session.best[-1].value:.5g}" if session.best else "no value yet"
    return (
        f"trials {done} done, {len(state.running())} running, {len(state.waiting())} waiting; "
        f"{iterations} iterations; {float(busy):.3g} of {state.gpus} GPUs held; {best}"
    )
