"""astrarium explain FILE ITEM"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.opening import opened, refuse, told_bar
from astrarium.cli.options import Json, OnePolicy, Overrides, ScenarioFile, Seed
from astrarium.cli.output import emit
from astrarium.core.errors import InputError, did_you_mean, read_from
from astrarium.core.quantities import duration_in

if TYPE_CHECKING:
    from astrarium.cluster.scenario.read import ClusterScenario
    from astrarium.core.quantities import Time
    from astrarium.run.experiment import Bar

Item = Annotated[
    str,
    typer.Argument(
        metavar="ITEM",
        help="What to explain: the number of a request or a trial, the name of a job or an app.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="TIME", help="An instant of a cluster, such as 90min; its whole life if not."
    ),
]


def explain(
    file: ScenarioFile,
    item: Item,
    at: At = None,
    policy: OnePolicy = None,
    override: Overrides = None,
    seed: Seed = None,
    json: Json = False,
) -> None:
    """Say what became of one request, job, trial or app, and why.

    Of an app on a cluster: why it has its GPUs, why it waits and behind whom, and when it can expect to run.
    """
    from rich.text import Text

    from astrarium.run.experiment import simulate

    level, scenario = opened(file, override, seed, policy)
    refuse(level, "cluster", {"--at": at})
    if level.name == "cluster":
        instant = None if at is None else duration_in("--at", at)
        facts, tables = _app(scenario, item, instant, told_bar(file, level))
    else:
        with read_from(file):
            run = simulate(level, scenario, bar=told_bar(file, level))
        sentences = level.report.explain(run, item)
        facts = {"item": item, "told": sentences}
        tables = [Text(line, no_wrap=True) for line in sentences]
    emit(json, {"level": level.name, **facts}, tables, None)


def _app(scenario: ClusterScenario, app: str, at: Time | None, bar: Bar) -> tuple[dict[str, Any], list[Any]]:
    from rich.text import Text

    from astrarium.cluster.explain import ClusterView, view
    from astrarium.cluster.level import run
    from astrarium.cluster.policies import Allocator
    from astrarium.cluster.report.facts import plain, tables
    from astrarium.cluster.report.sentences import Case, sentences
    from astrarium.cluster.report.summary import summarize_apps
    from astrarium.cluster.scenario.build import build
    from astrarium.cluster.state import ClusterState

    built = build(scenario)
    views = list[ClusterView]()
    if app not in built.apps:
        some = ", ".join(list(built.apps)[:12]) + (", ..." if len(built.apps) > 12 else "")
        raise InputError("ITEM", app, f"an app of the file: {some}{did_you_mean(list(built.apps), app)}")

    def look(now: Time, state: ClusterState, allocator: Allocator) -> None:
        views.append(view(now, state, allocator))

    with bar(f"simulating {scenario.policy.label}", built.work_ends) as progress:
        record = run(scenario, progress, built, None if at is None else (at, look))
    number = built.apps[app].id
    place = next(place for place, row in enumerate(record.rows) if row.app.id == number)
    case = Case(record, record.rows[place], summarize_apps(record)[place], views[0] if views else None)
    return plain(case), [*(Text(line, no_wrap=True) for line in sentences(case)), *tables(case)]
