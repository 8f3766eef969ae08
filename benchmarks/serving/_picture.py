"""Answers in time against the load that was offered: all servers in one picture, a panel per GPU count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _outcome import OURS, Outcome


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
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
        (line,) = panel.plot(
            offered, in_time, marker="o", markersize=3, linewidth=3 if ours else 1.4, label=label
        )
        panel.plot([outcome.goodput], [outcome.goodput], marker="*", markersize=12, color=line.get_color())
    limit = max(point.offered for outcome in outcomes for point in outcome.curve)
    panel.plot([0, limit], [0, limit], color="grey", linewidth=0.8, linestyle=":", label="all in time")
    panel.set_xlabel("offered, requests/s")
    panel.set_ylabel("answered in time, requests/s")
    panel.set_ylim(0, 1.15 * max(point.in_time for outcome in outcomes for point in outcome.curve) + 1)
    panel.legend(fontsize=8)
