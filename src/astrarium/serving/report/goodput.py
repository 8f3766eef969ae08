"""A search for goodput as a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from astrarium.run.tables import plain_table

if TYPE_CHECKING:
    from rich.table import Table
from astrarium.serving.goodput import Goodput
from astrarium.serving.path_load import not_counted


def goodput_table(label: str, goodput: Goodput) -> Table:
    """Return the highest rate at which every model keeps its objective, as a table."""
    promise = [] if goodput.carried is None else [f"{goodput.promised:,.1f}", goodput.limit]
    promises = ["promised requests/s", "limited by"][: len(promise)]
    table = plain_table(
        "policy", "goodput requests/s", "interval", "by seed", "runs", "upper bound", *promises
    )
    low, high = goodput.interval
    by_seed = zip(goodput.seeds, goodput.per_seed, strict=True)
    table.add_row(
        label,
        f"{goodput.goodput:,.1f}",
        f"{low:,.1f} to {high:,.1f}",
        ", ".join(f"{seed}: {rate:,.0f}" for seed, rate in by_seed),
        str(len(goodput.probes)),
        f"{goodput.capacity:,.0f}",
        *promise,
    )
    table.caption = not_counted(goodput.unmeasured) if goodput.unmeasured else None
    return table


def draw_probes(goodput: Goodput, path: Path) -> None:
    """Draw every rate that was tried, by seed. A run that fails stops early: its point is a lower bound."""
    from astrarium.run.plots import margins, picture

    with picture(path, 7, 4.2) as (figure, axes):
        margins(figure, left=0.75, right=0.25, bottom=0.6, top=0.5, w=0, h=0)
        ax = axes[0, 0]
        for passed, color, marker, label in (
            (True, "#009E73", "o", "kept"),
            (False, "#D55E00", "x", "missed"),
        ):
            probes = [probe for probe in goodput.probes if probe.passed == passed]
            rates = [probe.rate for probe in probes]
            bad = [100 * probe.worst_bad for probe in probes]
            ax.plot(rates, bad, marker, color=color, ms=5, label=f"objective {label}", ls="none")
        ax.axhline(1, color="#333333", lw=1, ls="--", label="1 % allowed")
        ax.axvspan(*goodput.interval, color="#0072B2", alpha=0.15, lw=0)
        ax.axvline(
            goodput.goodput, color="#0072B2", lw=1.5, label=f"goodput {goodput.goodput:,.0f} requests/s"
        )
        ax.set_yscale("symlog", linthresh=0.1)
        ax.set(title="Search for goodput", xlabel="offered rate (requests/s)", xlim=(0, None), ylim=(0, 150))
        ax.set(ylabel="bad requests of the worst model (%)")
        ax.legend(loc="upper left")
