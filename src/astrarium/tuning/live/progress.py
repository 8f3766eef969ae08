"""A live search tells how it is doing: in a changing line where somebody watches, else in lines."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from astrarium.tuning.live.loop.live_tuning import LiveTuning
from astrarium.tuning.report.tables import LINE, configuration, last_line
from astrarium.tuning.samplers import Standing
from astrarium.tuning.state import Outcome

SELDOM = 10.0  # seconds between lines of a log
MOST_FAILURES = 5  # that are told one by one


class SearchProgress:
    """*show* is called with the live run after each of its steps. Better ones are told at once.

    Without a label, lines are told where a line that changes could be.
    """

    def __init__(self, label: str = "") -> None:
        self._label = label
        self._due = 0.0
        self._began: float | None = None  # when the first step was over: processes take a while to come up
        self._told = self._failed = 0  # best ones, and failed ones, so far
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
        for best in live.session.best[self._told :]:
            values = live.session.candidates[best.candidate].configuration.values
            self._say(
                f"{seconds:8.1f}s  best {best.value:.5g}, candidate {best.candidate}: {configuration(values)}"
            )
        self._told = len(live.session.best)
        if self._console is not None:
            self._console.update(f"{self._label}: {seconds:.0f} s, {line(live)}")
        elif seconds >= self._due:
            self._due = seconds + SELDOM
            self._say(f"{seconds:8.1f}s  {line(live)}")

    def _begin(self) -> None:
        """Not before there is something to show: the start tells of itself."""
        if self._label and sys.stderr.isatty():
            from rich.console import Console

            self._console = Console(stderr=True).status(self._label)
            self._console.start()

    def _tell_failures(self, live: LiveTuning, seconds: float) -> None:
        """The first few: whoever watches may want to stop, and mend something."""
        failed = [
            candidate
            for candidate in live.session.candidates.values()
            if candidate.standing is Standing.FAILED
        ]
        for candidate in failed[self._failed : MOST_FAILURES]:
            self._say(
                f"{seconds:8.1f}s  candidate {candidate.number} failed: {last_line(candidate.reason, LINE)}"
            )
        self._failed = len(failed)

    def _say(self, text: str) -> None:
        if self._console is not None:
            self._console.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)


def line(live: LiveTuning) -> str:
    """Trials done, running and waiting; iterations; GPUs that are held; the best so far."""
    state = live.state
    session = live.session
    rows = list(state.ledger.rows.values())
    done = sum(row.outcome is not Outcome.OPEN for row in rows)
    busy = sum((1 - state.strips.room(gpu) for gpu in state.strips.holders), start=0)
    iterations = sum(row.done for row in rows)
    best = f"best {session.best[-1].value:.5g}" if session.best else "no value yet"
    return (
        f"trials {done} done, {len(state.running())} running, {len(state.waiting())} waiting; "
        f"{iterations} iterations; {float(busy):.3g} of {state.gpus} GPUs held; {best}"
    )
