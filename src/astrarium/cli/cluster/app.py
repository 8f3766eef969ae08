"""astrarium cluster VERB: apps that share a cluster, simulated or live."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.cluster.live import run
from astrarium.cli.cluster.status import status
from astrarium.cli.cluster.submit import submit, withdraw
from astrarium.cli.options import Json, NoFolder, Out, Overrides, Overwrite, ScenarioFile, Seed

if TYPE_CHECKING:
    from astrarium.cluster.scenario.build import Built
    from astrarium.cluster.scenario.read import ClusterScenario
    from astrarium.core.units import Time

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Share a cluster between apps.")
for live in (run, submit, withdraw, status):
    app.command()(live)

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--policy",
        metavar="POLICY",
        help="Instead of the file's policy, with parameters if any: themis or themis:lease=5min,f=0.5. "
        "Repeat it to run several on the same apps; `all` stands for every one.",
    ),
]
OnePolicy = Annotated[
    str | None, typer.Option("-p", "--policy", metavar="POLICY", help="Instead of the file's policy.")
]
AppName = Annotated[str, typer.Option("--app", metavar="NAME", help="The app to explain.")]
At = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="An instant, such as 90min; its whole life if not.")
]


@app.command()
def simulate(
    context: typer.Context,
    file: ScenarioFile,
    policy: Policies = None,
    override: Overrides = None,
    seed: Seed = None,
    json: Json = False,
    out: Out = None,
    overwrite: Overwrite = False,
    no_folder: NoFolder = False,
) -> None:
    """Run apps on a cluster in the simulator, under one policy or several."""
    from astrarium.cli import output
    from astrarium.cli.cluster import folder
    from astrarium.cluster.report.tables import apps_table, overview_table
    from astrarium.cluster.scenario.build import build

    scenarios = variants(_loaded(file, override, seed), policy or [])
    built = build(next(iter(scenarios.values())))
    at = output.target("cluster", file.stem, out, overwrite, no_folder)
    runs = [folder.run_one(label, scenario, built) for label, scenario in scenarios.items()]
    tables = [overview_table({run.label: run.summary for run in runs})]
    if len(runs) == 1:
        tables.append(apps_table(runs[0].apps))
    shown = folder.shown(runs)
    if at.path is not None:
        with at.draft() as draft:
            folder.write(draft, runs, built, shown, tables, file.name, output.command_line(context))
    output.emit(json, shown, tables, at.path)


@app.command()
def explain(
    file: ScenarioFile,
    app: AppName,
    at: At = None,
    policy: OnePolicy = None,
    override: Overrides = None,
    seed: Seed = None,
    json: Json = False,
) -> None:
    """Say why an app has its GPUs, why it waits and behind whom, and when it can expect to run."""
    from rich.text import Text

    from astrarium.cli.cluster.folder import explained
    from astrarium.cli.output import emit
    from astrarium.cluster.report.words import plain, sentences, tables
    from astrarium.cluster.scenario.build import build

    [(label, scenario)] = variants(_loaded(file, override, seed), [policy] if policy else []).items()
    built = build(scenario)
    _check_app(app, built)
    case = explained(scenario, built, app, None if at is None else _instant(at), label)
    told = [Text(line, no_wrap=True) for line in sentences(case)]
    emit(json, plain(case), [*told, *tables(case)], None)


def _loaded(file: Path, override: list[str] | None, seed: int | None) -> ClusterScenario:
    from astrarium.cluster.scenario.read import load

    return load(file, [*(override or []), *([] if seed is None else [f"seed={seed}"])])


def variants(scenario: ClusterScenario, specs: list[str]) -> dict[str, ClusterScenario]:
    """All of them checked before the first is run."""
    from astrarium.cli.variants import variants_of
    from astrarium.cluster.policies import cluster_policies

    def made(name: str, parameters: dict[str, Any]) -> ClusterScenario:
        own = name == scenario.policy and not parameters
        return scenario if own else scenario.with_policy(name, **parameters)

    if not specs:
        return {scenario.policy: scenario}
    every = cluster_policies.names()
    return variants_of([name for each in specs for name in (every if each == "all" else [each])], made)


def _check_app(name: str, built: Built) -> None:
    from astrarium.core.errors import InputError, did_you_mean

    if name not in built.apps:
        some = ", ".join(list(built.apps)[:12]) + (", ..." if len(built.apps) > 12 else "")
        raise InputError("--app", name, f"an app of the file: {some}{did_you_mean(list(built.apps), name)}")


def _instant(text: str) -> Time:
    from astrarium.core.errors import InputError
    from astrarium.core.quantities import read_duration

    try:
        return read_duration(text)
    except ValueError as error:
        raise InputError("--at", text, str(error)) from None
