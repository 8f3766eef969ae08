"""A finished run of a cluster becomes rows, files and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astrarium.cluster.record import ClusterRecord
from astrarium.cluster.report.summary import AppSummary, ClusterSummary, summarize, summarize_apps
from astrarium.cluster.report.tables import APP_COLUMNS, app_cells, apps_table, overview_table
from astrarium.cluster.report.teams import summarize_teams, teams_table
from astrarium.cluster.report.timeline import cluster_timeline
from astrarium.core.level import Run, named
from astrarium.core.quantities import FOREVER, SECOND
from astrarium.run.report import NamedRows, columns, picked, struct_as_dict, write_csv
from astrarium.run.timeline import write_timeline

if TYPE_CHECKING:
    from astrarium.cluster.scenario.read import ClusterScenario

Runs = Sequence["Run[ClusterScenario, ClusterRecord]"]
LEASE_COLUMNS = ("app", "gpu", "machine", "rack", "start_s", "end_s")
DECISION_COLUMNS = ("at_s", "what", "app", "gpus", "until_s", "leases", "why")
FILES = {
    "apps.csv": "one row an app: when it came, first held a GPU and ended; GPU time, rho, placement score",
    "leases.csv": "one row for each time that an app held a GPU, over renewals of its lease",
    "decisions.csv": "one row for each grant of GPUs, its renewals included, or what was taken back, and why",
    "timeline.json": "who held what when: open it in https://ui.perfetto.dev or chrome://tracing",
}


def summarize_run(scenario: ClusterScenario, record: ClusterRecord) -> ClusterSummary:
    summary = summarize(record)
    by_team = summarize_teams(record, scenario.teams, summary.by_app) if scenario.teams else []
    return msgspec.structs.replace(summary, by_team=by_team)


def tables(runs: Runs) -> list[Any]:
    """Return the overview; of a single run its apps and teams too."""
    only = runs[0].summary if len(runs) == 1 else None
    apps = [apps_table(only.by_app)] if only is not None else []
    teams = [teams_table(only.by_team)] if only is not None and only.by_team else []
    return [overview_table({name: run.summary for name, run in named(runs).items()}), *apps, *teams]


def shown(runs: Runs) -> dict[str, Any]:
    """Return the summaries; of a single run its apps too."""
    if len(runs) == 1:
        return struct_as_dict(runs[0].summary)
    summaries = {name: struct_as_dict(run.summary) for name, run in named(runs).items()}
    return {
        "policies": {
            label: {k: v for k, v in summary.items() if k != "by_app"} for label, summary in summaries.items()
        }
    }


def write(run: Run[ClusterScenario, ClusterRecord], folder: Path, outcomes: bool) -> None:
    """Write apps, leases and decisions, if *outcomes*, and the timeline."""
    for name, (names, cells) in _rows(run.record, run.summary.by_app).items() if outcomes else ():
        write_csv(folder / f"{name}.csv", names, cells)
    write_timeline(folder / "timeline.json", cluster_timeline(run.record))


def draw(runs: Runs, plots: Path, title: str) -> None:
    from astrarium.cluster.report.plots import draw_fairness, draw_holders

    drawn = [replace(run, label=name) for name, run in named(runs).items()]
    draw_fairness(drawn, plots / "fairness.png", title)
    draw_holders(drawn, plots / "holders.png")


def rows(record: ClusterRecord) -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """Return apps, leases and decisions as columns; times in seconds."""
    tables = _rows(record, summarize_apps(record))
    return {name: columns(names, cells) for name, (names, cells) in tables.items()}


def _rows(record: ClusterRecord, apps: Sequence[AppSummary]) -> dict[str, NamedRows]:
    """Return the rows of each kind, with the names of their columns."""
    return {
        "apps": (APP_COLUMNS, map(app_cells, apps)),
        "leases": (LEASE_COLUMNS, _leases(record)),
        "decisions": (DECISION_COLUMNS, _decisions(record)),
    }


def explain(run: Run[ClusterScenario, ClusterRecord], item: str) -> list[str]:
    """Say what an app was given and when it waited, over its whole life."""
    from astrarium.cluster.report.sentences import Case, sentences

    record = run.record
    places = {row.app.name: place for place, row in enumerate(record.rows)}
    place = picked(places, item, "app")
    return sentences(Case(record, record.rows[place], summarize_apps(record)[place], None))


def _leases(record: ClusterRecord) -> Iterator[Sequence[Any]]:
    names = {row.app.id: row.app.name for row in record.rows}
    for held in record.held:
        machine = record.machines[held.gpu]
        times = (held.start / SECOND, held.end / SECOND)
        yield (names[held.app], held.gpu, machine, record.racks[machine], *times)


def _decisions(record: ClusterRecord) -> Iterator[Sequence[Any]]:
    names = {row.app.id: row.app.name for row in record.rows}
    for decision in record.decisions:
        until = "" if decision.until < 0 or decision.until >= FOREVER else decision.until / SECOND
        what = "granted" if decision.until >= 0 else "taken back"
        gpus = " ".join(map(str, decision.gpus))
        yield (decision.at / SECOND, what, names[decision.app], gpus, until, decision.leases, decision.why)
