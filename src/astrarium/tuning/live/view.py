"""A live search in a terminal: how far it is, the best so far, and a curve for each candidate that trains."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from astrarium.run.tables import as_it_is, plain_table, unit_of
from astrarium.tuning.live.loop.live_tuning import LiveTuning
from astrarium.tuning.state import Outcome, TrialRow

if TYPE_CHECKING:
    from rich.console import RenderableType

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24  # of a curve, in letters
MOST = 12  # candidates with a row of their own


def view(label: str, live: LiveTuning, seconds: float) -> RenderableType:
    """Return what a terminal shows of a live search after so many seconds."""
    from rich.console import Group

    heading = as_it_is(f"{label}: {seconds:.0f} s, {status(live)}")
    left = time_left(live, seconds)
    lines = [heading] if left is None else [heading, as_it_is(f"about {left} left, by the search's budget")]
    running = live.state.running()
    if not running:
        return Group(*lines)
    table = plain_table("candidate", "iterations", "value", "best", "GPUs")
    table.add_column("curve", no_wrap=True)
    for row in running[:MOST]:
        table.add_row(*_cells(live, row))
    if len(running) > MOST:
        table.caption = f"{MOST} of {len(running)} that train"
    return Group(*lines, table)


def status(live: LiveTuning) -> str:
    """Return the trials done, running and waiting; iterations; GPUs that are held; the best so far."""
    state = live.state
    session = live.session
    rows = list(state.ledger.rows.values())
    done = sum(row.outcome is not Outcome.OPEN for row in rows)
    busy = sum((1 - state.strips.free_share(gpu) for gpu in state.strips.holders), start=0)
    best = f"best {session.best[-1].value:.5g}" if session.best else "no value yet"
    return (
        f"trials {done} done, {len(state.running())} running, {len(state.waiting())} waiting; "
        f"{iterations(live)} iterations; {float(busy):.3g} of {state.gpus} GPUs held; {best}"
    )


def iterations(live: LiveTuning) -> int:
    """Return the iterations that this run has done, and those that an earlier one has left."""
    return sum(row.done for row in live.state.ledger.rows.values())


def time_left(live: LiveTuning, seconds: float) -> str | None:
    """Return how long the rest of the search takes at the pace until now; None where nobody knows."""
    done = iterations(live)
    own = done - live.remembered_iterations
    budget = live.session.budget
    if budget is None or own <= 0 or done >= budget:
        return None
    rest = seconds * (budget - done) / own
    unit, size = unit_of(rest)
    return f"{rest / size:.2g} {unit}"


def _cells(live: LiveTuning, row: TrialRow) -> list[str]:
    candidate = live.session.candidates[row.trial.candidate]
    values = [score.value for score in candidate.curve]
    best = live.session.pool.best_of(candidate.number)
    numbers = [f"{values[-1]:.5g}" if values else "-", f"{best:.5g}" if best is not None else "-"]
    place = "-" if row.place is None else str(row.place.width)  # such as 1/3
    return [
        str(candidate.number),
        f"{candidate.trained}/{row.trial.total}",
        *numbers,
        place,
        sparkline(values),
    ]


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Return a curve as a line of bars, each for the last value of an equal part of it."""
    count = min(width, len(values))
    shown = [values[(part + 1) * len(values) // count - 1] for part in range(count)]
    low = min(shown, default=0.0)
    span = max(shown, default=0.0) - low
    height = (len(BARS) - 1) / span if span and isfinite(span) else 0.0
    return "".join(BARS[round((value - low) * height) if height else 0] for value in shown)
