"""astrarium simulate FILE [-p POLICY]"""

from __future__ import annotations

from typing import Annotated

import typer

from astrarium.cli.options import (
    EngineOption,
    Json,
    NoFolder,
    NoOutcomes,
    Out,
    Overrides,
    Overwrite,
    ScenarioFile,
    Seed,
)

Policy = Annotated[
    str | None, typer.Option("-p", "--policy", metavar="POLICY", help="Instead of the file's policy.")
]


def simulate(
    context: typer.Context,
    file: ScenarioFile,
    policy: Policy = None,
    override: Overrides = None,
    seed: Seed = None,
    engine: EngineOption = "auto",
    json: Json = False,
    out: Out = None,
    overwrite: Overwrite = False,
    no_outcomes: NoOutcomes = False,
    no_folder: NoFolder = False,
) -> None:
    """Run a scenario in the simulator."""
    from astrarium.cli import output
    from astrarium.cli.compare import variants
    from astrarium.cli.jobs import Wishes, simulate_jobs
    from astrarium.cli.running import run_with_progress
    from astrarium.report.summary import summarize
    from astrarium.report.tables import run_tables
    from astrarium.scenario.jobs import has_jobs

    if has_jobs(file):
        wishes = Wishes(file, override, seed, engine, json, out, overwrite, no_outcomes, no_folder)
        simulate_jobs(context, wishes, policy)
        return
    scenario = output.load_scenario(file, override, seed)
    if policy is not None:
        [scenario] = variants(scenario, [policy]).values()
    at = output.target("simulate", file.stem, out, overwrite, no_folder)
    record = run_with_progress(scenario, engine)
    summary = summarize(record)
    title = f"{file.name}: {scenario.policy.name}, {summary.offered_rate:,.0f} requests/s"
    run = output.Run(scenario, record, summary, title, run_tables(summary))
    shown = output.plain(summary)
    output.write_run(at, run, shown, output.command_line(context), not no_outcomes)
    output.emit(json, shown, run.tables, at.path)
