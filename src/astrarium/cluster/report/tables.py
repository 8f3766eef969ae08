"""Apps on a cluster, as tables for a terminal and rows for a spreadsheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from astrarium.cluster.auction.tally import AuctionTally
from astrarium.cluster.report.summary import DEFINITIONS, AppSummary, ClusterSummary
from astrarium.run.tables import as_it_is, plain_table, unit_of

if TYPE_CHECKING:
    from rich.table import Table

_MOST_APPS = 40
APP_COLUMNS = ("app", "team", "kind", "arrived_s", "waited_s", "ended_s", "took_s", "outcome", "reason",
                "gpu_hours", "ran_gpu_hours", "work_gpu_hours", "contention",
                *(f"rho_{name}" for name in DEFINITIONS), "placement_score", "runs")  # fmt: skip


def overview_table(summaries: Mapping[str, ClusterSummary]) -> Table:
    """One row for each policy; times in hours where they are long."""
    unit, size = unit_of(max(summary.makespan_s for summary in summaries.values()))
    rho = (*(f"rho {name}" for name in DEFINITIONS), f"median {DEFINITIONS[0]}")
    times = (f"makespan {unit}", f"completion {unit}", f"wait {unit}")
    table = plain_table("policy", "finished", *rho, *times, "GPU-hours", "score", "busy", "runs")
    explained = "rho: of the app that fared worst, and the median; completion and wait: means"
    auctions = (
        f"{label}: {auctions_told(summary.auctions)}"
        for label, summary in summaries.items()
        if summary.auctions
    )
    table.caption = as_it_is("\n".join((explained, *auctions)))
    for label, summary in summaries.items():
        finished = f"{summary.outcomes.get('finished', 0)}/{summary.apps}"
        spreads = [summary.rho.get(name) for name in DEFINITIONS]
        rhos = [
            *(spread.worst if spread else None for spread in spreads),
            spreads[0].median if spreads[0] else None,
        ]
        table.add_row(label, finished, *map(_number, rhos), *_times(summary, size), *_use(summary))
    return table


def auctions_told(tally: AuctionTally) -> str:
    held = f"{tally.auctions:,} auction" + ("" if tally.auctions == 1 else "s")
    if not tally.unsolved:
        return f"{held}, all solved to the end"
    return (
        f"{held}, {tally.unsolved:,} not solved to the end, where the sum of log(1/rho) "
        f"could be larger by at most {tally.largest_gap:.2g}"
    )


def _times(summary: ClusterSummary, size: float) -> list[str]:
    means = [spread.mean if spread else None for spread in (summary.completion_s, summary.waited_s)]
    return [_number(None if value is None else value / size, 1) for value in (summary.makespan_s, *means)]


def _use(summary: ClusterSummary) -> list[str]:
    return [f"{summary.gpu_hours:,.1f}", _number(summary.score), f"{summary.busy:.1%}", f"{summary.runs:,}"]


def apps_table(apps: Sequence[AppSummary]) -> Table:
    """Return a row for each app, in order of arrival; if there are very many, for those who fared worst."""
    worst = sorted(apps, key=lambda app: (bool(app.rho), -app.rho.get(DEFINITIONS[0], 0.0)))
    shown = apps if len(apps) <= _MOST_APPS else worst[:_MOST_APPS]
    unit, size = unit_of(max((app.ended_s or 0.0 for app in apps), default=0.0))
    instants = [f"{name} {unit}" for name in ("arrived", "waited", "ended", "took")]
    rho = [f"rho {name}" for name in DEFINITIONS]
    table = plain_table("app", *instants, "GPU-hours", *rho, "score", "runs", "outcome")
    for app in shown:
        times = (app.arrived_s, app.waited_s, app.ended_s, app.took_s)
        cells = [_number(None if time is None else time / size, 1) for time in times]
        numbers = [f"{app.gpu_hours:,.1f}", *(_number(app.rho.get(name)) for name in DEFINITIONS)]
        outcome = ": ".join(part for part in (app.outcome, app.reason) if part)
        table.add_row(
            as_it_is(app.name), *cells, *numbers, _number(app.score), str(app.runs), as_it_is(outcome)
        )
    if len(apps) > _MOST_APPS:
        table.caption = f"the {_MOST_APPS} of {len(apps)} apps that fared worst"
    return table


def app_cells(app: AppSummary) -> list[Any]:
    fields = {"app": "name", "placement_score": "score"}  # others are called as their columns are
    rho = {f"rho_{name}": app.rho.get(name) for name in DEFINITIONS}
    return [rho[name] if name in rho else getattr(app, fields.get(name, name)) for name in APP_COLUMNS]


def _number(value: float | None, places: int = 2) -> str:
    return "-" if value is None else f"{value:,.{places}f}"
