"""astrarium compare FILE -p POLICY -p POLICY"""

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
from astrarium.cli.serving.plan_options import Interference

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--policy",
        metavar="POLICY",
        help="A policy, with parameters if any: timeout or timeout:timeout=10%,gather=fcfs. Repeat it. All "
        "policies unless given.",
    ),
]
Seeds = Annotated[
    int, typer.Option("--seeds", min=1, help="Run each policy with so many seeds, from the file's own on.")
]


def compare(
    context: typer.Context,
    file: ScenarioFile,
    policy: Policies = None,
    plan: PlanFile = None,
    interference: Interference = "none",
    override: Overrides = None,
    seed: Seed = None,
    seeds: Seeds = 1,
    engine: EngineOption = "auto",
    json: Json = False,
    out: Out = None,
    overwrite: Overwrite = False,
    no_outcomes: NoOutcomes = False,
    no_folder: NoFolder = False,
) -> None:
    """Run several policies on the same scenario, of any level."""
    from astrarium.cli import output
    from astrarium.cli.opening import opened, read_from, seeded, told_bar, variants
    from astrarium.cli.serving.planned import compare_planned
    from astrarium.run.experiment import simulate as run_one

    at = output.target("compare", file.stem, out, overwrite, no_folder)
    if plan is not None or interference != "none":
        compare_planned(context, file, policy, plan, interference, override, seed, seeds, engine, at, json,
                        not no_outcomes)  # fmt: skip
        return
    level, scenario = opened(file, override, seed)
    chosen = variants(level, scenario, policy or ["all"])
    shown = told_bar(file, level)
    with read_from(file):
        runs = [
            run_one(level, each, label=label, engine=engine, bar=shown)
            for label, each in seeded(chosen, seeds)
        ]
    title = f"{file.name}: {level.report.title(runs[0])}, the same for each policy"
    output.finish(context, at, runs, title, json, not no_outcomes, shown=output.by_policy(runs))
