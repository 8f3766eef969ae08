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
    PlanFile,
    ScenarioFile,
    Seed,
)
from astrarium.cli.plan_options import Interference

Policy = Annotated[
    str | None, typer.Option("-p", "--policy", metavar="POLICY", help="Instead of the file's policy.")
]


def simulate(
    context: typer.Context,
    file: ScenarioFile,
    policy: Policy = None,
    plan: PlanFile = None,
    interference: Interference = "none",
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
    from astrarium.cli.running import PlanTaken, run_with_progress
    from astrarium.report.summary import summarize
    from astrarium.report.tables import cell_table, run_tables
    from astrarium.scenario.jobs import has_jobs

    if has_jobs(file):
        output.refuse_plan(plan)
        wishes = Wishes(file, override, seed, engine, json, out, overwrite, no_outcomes, no_folder)
        simulate_jobs(context, wishes, policy)
        return
    scenario = output.load_scenario(file, override, seed, plan is not None)
    if policy is not None:
        [scenario] = variants(scenario, [policy], plan is not None).values()
    taken = PlanTaken.read(plan, scenario, interference)
    at = output.target("simulate", file.stem, out, overwrite, no_folder)
    record, placed = taken.run(scenario, engine) if taken else (run_with_progress(scenario, engine), None)
    summary = summarize(record)
    title = f"{file.name}: {scenario.policy.name}, {summary.offered_rate:,.0f} requests/s"
    tables = [*run_tables(summary), *([cell_table(placed)] if placed else [])]
    run = output.Run(scenario, record, summary, title, tables, plan=taken.to_yaml() if taken else None)
    shown = {**output.plain(summary), **({"plan": output.plain(placed)} if placed else {})}
    output.write_run(at, run, shown, output.command_line(context), not no_outcomes)
    output.emit(json, shown, run.tables, at.path)
