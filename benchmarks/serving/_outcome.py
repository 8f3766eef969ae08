"""What a comparison of servers comes to: one outcome for each, a table of all, and our bars."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from _shared import Row, number
from peers import Settings

OURS, TRITON = "astrarium", "triton"
OVER = {"triton": 1.25, "litserve": 3.0, "ray": 3.0}  # what we hold ourselves to
KEPT, PROMISE = 0.95, 0.90
HEADER = ("server", "GPUs", "goodput, /s", "spread", "over Triton", "kept at twice", "settings", "version")


@dataclass(frozen=True)
class Point:
    share: float  # of the server's own goodput
    offered: float  # requests/s
    in_time: float  # answers in time a second
    in_time_share: float


@dataclass(frozen=True)
class Outcome:
    server: str
    gpus: int
    settings: Settings
    versions: dict[str, str]
    rates: list[float]  # goodput, one for each repetition
    unusable: int  # runs in which the generator fell behind
    curve: list[Point]
    promised: float | None = None  # by the simulator

    @property
    def goodput(self) -> float:
        return statistics.median(self.rates)

    @property
    def kept(self) -> float:
        """Of the goodput, when twice as much is offered."""
        last = self.curve[-1]
        return last.in_time / self.goodput if self.goodput else 0.0


def table(outcomes: Sequence[Outcome]) -> None:
    from rich.console import Console
    from rich.table import Table

    made = Table(*HEADER)
    for outcome in outcomes:
        made.add_row(*cells(outcome, outcomes), style="bold" if outcome.server == OURS else "")
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(made)


def cells(outcome: Outcome, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    triton = find(outcomes, TRITON, outcome.gpus)
    over = f"{outcome.goodput / triton.goodput:.2f}" if triton and triton.goodput else ""
    spread = f"{number(min(outcome.rates))} to {number(max(outcome.rates))}"
    version = " ".join(next(iter(outcome.versions.items()), ("",)))
    kept = f"{outcome.kept:.0%}" if outcome.goodput else ""
    goodput = number(outcome.goodput)
    return (outcome.server, str(outcome.gpus), goodput, spread, over, kept, str(outcome.settings), version)


def find(outcomes: Sequence[Outcome], server: str, gpus: int) -> Outcome | None:
    return next((o for o in outcomes if o.server == server and o.gpus == gpus), None)


def bars(outcomes: Sequence[Outcome]) -> list[Row]:
    """Ours against the others in the same run, against the simulator, and in overload."""
    rows: list[Row] = []
    for ours in (o for o in outcomes if o.server == OURS):
        gpus = f"{ours.gpus} GPU{'s' * (ours.gpus > 1)}"
        for name, bar in OVER.items():
            if (peer := find(outcomes, name, ours.gpus)) and peer.goodput:
                ratios = [rate / peer.goodput for rate in ours.rates]
                rows.append(Row(f"goodput over {name}'s, {gpus}", "x", ratios, bar=bar))
        if ours.promised:
            shares = [rate / ours.promised for rate in ours.rates]
            rows.append(Row(f"goodput over the simulator's promise, {gpus}", "x", shares, bar=PROMISE))
        rows.append(Row(f"of the goodput kept at twice the load, {gpus}", "x", [ours.kept], bar=KEPT))
    return rows
