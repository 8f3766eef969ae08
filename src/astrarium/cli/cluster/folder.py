"""Runs of a cluster with a progress bar, and the folder that is written of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from astrarium.cli.output import file_name, plain
from astrarium.cli.progress import bar
from astrarium.cluster.explain import ClusterView, view
from astrarium.cluster.level import run
from astrarium.cluster.policies import Allocator
from astrarium.cluster.record import ClusterRecord
from astrarium.cluster.report import tables as tables_of
from astrarium.cluster.report.summary import AppSummary, ClusterSummary, summarize, summarize_apps
from astrarium.cluster.report.words import Case
from astrarium.cluster.scenario.build import Built
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.cluster.state import ClusterState
from astrarium.core.units import Time
from astrarium.run import folder


class ClusterRun(NamedTuple):
    label: str
    record: ClusterRecord
    summary: ClusterSummary
    apps: Sequence[AppSummary]
    scenario: ClusterScenario


def run_one(label: str, scenario: ClusterScenario, built: Built) -> ClusterRun:
    with bar(f"simulating {label}", built.work_ends) as progress:
        record = run(scenario, progress, built)
    apps = summarize_apps(record)
    return ClusterRun(label, record, summarize(record, apps), apps, scenario)


def explained(scenario: ClusterScenario, built: Built, app: str, at: Time | None, label: str) -> Case:
    found: list[ClusterView] = []

    def look(now: Time, state: ClusterState, allocator: Allocator) -> None:
        found.append(view(now, state, allocator))

    with bar(f"simulating {label}", built.work_ends) as progress:
        record = run(scenario, progress, built, None if at is None else (at, look))
    number = built.apps[app].id
    place = next(place for place, row in enumerate(record.rows) if row.app.id == number)
    return Case(record, record.rows[place], summarize_apps(record)[place], found[0] if found else None)


def shown(runs: Sequence[ClusterRun]) -> dict[str, Any]:
    """What --json prints: of one run its apps too."""
    if len(runs) > 1:
        return {"policies": {each.label: plain(each.summary) for each in runs}}
    return {**plain(runs[0].summary), "by_app": [plain(app) for app in runs[0].apps]}


def write(
    draft: Path,
    runs: Sequence[ClusterRun],
    built: Built,
    result: dict[str, Any],
    tables: Sequence[Any],
    title: str,
    command: str,
) -> None:
    from astrarium.cluster.report.plots import Drawn, draw_fairness, draw_holders

    notes = dict(tables_of.FILES)
    for each in runs:
        place = draft if len(runs) == 1 else folder.unused(draft / file_name(each.label))
        _write_run(place, each, built)
        if place != draft:
            folder.write_summary(place, plain(each.summary))
            notes[place.name] = (
                f"the run of {each.label}: summary, scenario, apps, leases, decisions, timeline"
            )
    folder.write_summary(draft, result)
    folder.write_tables(draft, tables)
    (draft / "plots").mkdir()
    drawn = [Drawn(each.label, each.record, each.summary, each.apps) for each in runs]
    draw_fairness(drawn, draft / "plots" / "fairness.png", title)
    draw_holders(drawn, draft / "plots" / "holders.png")
    folder.write_readme(draft, command, notes)


def _write_run(place: Path, one: ClusterRun, built: Built) -> None:
    from astrarium.cluster.report.timeline import write_cluster_timeline

    place.mkdir(exist_ok=True)
    (place / "scenario.yaml").write_text(one.scenario.to_yaml(), encoding="utf-8")
    tables_of.write_apps(one.apps, place / tables_of.APPS_FILE)
    tables_of.write_leases(one.record, built.machines, place / tables_of.LEASES_FILE)
    tables_of.write_decisions(one.record, place / tables_of.DECISIONS_FILE)
    write_cluster_timeline(one.record, built.machines, place / "timeline.json")
