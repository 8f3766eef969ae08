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
from astrarium.cli.plan_options import Interference, RouterWait, Stages, router_wait

Policy = Annotated[
    str | None, typer.Option("-p", "--policy", metavar="POLICY", help="Instead of the file's policy.")
]


def simulate(
    context: typer.Context,
    file: ScenarioFile,
    policy: Policy = None,
    plan: PlanFile = None,
    interference: Interference = "none",
    stages: Stages = False,
    router: RouterWait = None,
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
    from astrarium.device.scenario import has_jobs
    from astrarium.serving.report.summary import summarize
    from astrarium.serving.report.tables import cell_table, run_tables

    if has_jobs(file):
        output.refuse_plan(plan)
        output.refuse_stages(stages, router)
        wishes = Wishes(file, override, seed, engine, json, out, overwrite, no_outcomes, no_folder)
        simulate_jobs(context, wishes, policy)
        return
    scenario = output.load_scenario(file, override, seed, plan is not None)
    if policy is not None:
        [scenario] = variants(scenario, [policy], plan is not None).values()
    max_wait = router_wait(router, plan is not None)
    taken = PlanTaken.read(plan, scenario, interference)
    at = output.target("simulate", file.stem, out, overwrite, no_folder)
    done = taken.run(scenario, engine) if taken else None
    record = done.record if done else run_with_progress(scenario, engine)
    summary = summarize(record)
    title = f"{file.name}: {scenario.policy.name}, {summary.offered_rate:,.0f} requests/s"
    tables, shown = run_tables(summary), output.plain(summary)
    if taken and done:
        placed = taken.summary(done)
        tables, shown = [*tables, cell_table(placed)], {**shown, "plan": output.plain(placed)}
    if stages:
        told = output.stages(summary, record, done)
        tables, shown = [*tables, told.table], {**shown, "stages": told.plain}
    if taken and max_wait is not None:
        told = output.routed(taken.on_path(scenario, max_wait), router or "")
        tables, shown = [*tables, told.table], {**shown, "router": told.plain}
    run = output.Run(scenario, record, summary, title, tables, plan=taken.to_yaml() if taken else None)
    output.write_run(at, run, shown, output.command_line(context), not no_outcomes)
    output.emit(json, shown, run.tables, at.path)
