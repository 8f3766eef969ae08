"""What a comparison of servers comes to: one outcome for each, a table, a picture, and our bars."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _shared import Row, number
from peers import Settings

OURS = "astrarium"
TRITON = "triton"
OVER = {"triton": 1.25, "litserve": 3.0, "ray": 3.0}  # what we hold ourselves to
KEPT = 0.95
PROMISE = 0.90
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

    shown = Table(*HEADER)
    for outcome in outcomes:
        shown.add_row(*cells(outcome, outcomes), style="bold" if outcome.server == OURS else "")
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(shown)


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


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw answers in time against the load offered: all servers in one picture, a panel per GPU count."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = sorted({outcome.gpus for outcome in outcomes})
    figure, panels = pyplot.subplots(1, len(counts), figsize=(7 * len(counts), 5), squeeze=False)
    for panel, gpus in zip(panels[0], counts, strict=True):
        draw_panel(panel, [outcome for outcome in outcomes if outcome.gpus == gpus])
        panel.set_title(f"{gpus} emulated GPU{'s' * (gpus > 1)}, objective 25 ms")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw_panel(panel: Any, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        offered = [0.0, *(point.offered for point in outcome.curve)]
        in_time = [0.0, *(point.in_time for point in outcome.curve)]
        ours = outcome.server == OURS
        label = f"{outcome.server} ({outcome.goodput:.0f}/s at 99 %)"
        (curve,) = panel.plot(
            offered, in_time, marker="o", markersize=3, linewidth=3 if ours else 1.4, label=label
        )
        panel.plot([outcome.goodput], [outcome.goodput], marker="*", markersize=12, color=curve.get_color())
    limit = max(point.offered for outcome in outcomes for point in outcome.curve)
    panel.plot([0, limit], [0, limit], color="grey", linewidth=0.8, linestyle=":", label="all in time")
    panel.set_xlabel("offered, requests/s")
    panel.set_ylabel("answered in time, requests/s")
    panel.set_ylim(0, 1.15 * max(point.in_time for outcome in outcomes for point in outcome.curve) + 1)
    panel.legend(fontsize=8)
