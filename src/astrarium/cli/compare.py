"""astrarium compare FILE -p POLICY -p POLICY"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
from astrarium.cli.variants import FORM, variants_of

if TYPE_CHECKING:
    from pathlib import Path

    from astrarium.serving.record import ServingRecord
    from astrarium.serving.report.summary import Summary
    from astrarium.serving.scenario import Scenario

    Run = tuple[str, ServingRecord, Summary]  # with its label

Policies = Annotated[
    list[str] | None,
    typer.Option("-p", "--policy", metavar="POLICY", help=f"{FORM}. Repeat it. All policies unless given."),
]


def compare(
    context: typer.Context,
    file: ScenarioFile,
    policy: Policies = None,
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
    """Run several policies on the same arrivals."""
    from astrarium.cli import output
    from astrarium.cli.jobs import Wishes, compare_jobs
    from astrarium.cli.running import PlanTaken, run_with_progress
    from astrarium.device.scenario import has_jobs
    from astrarium.run import folder
    from astrarium.serving.report import files
    from astrarium.serving.report.summary import summarize
    from astrarium.serving.report.tables import overview_table

    if has_jobs(file):
        output.refuse_plan(plan)
        wishes = Wishes(file, override, seed, engine, json, out, overwrite, no_outcomes, no_folder)
        compare_jobs(context, wishes, policy or [])
        return
    scenario = output.load_scenario(file, override, seed, plan is not None)
    taken = PlanTaken.read(plan, scenario, interference)
    scenarios = variants(scenario, policy or [], plan is not None)
    at = output.target("compare", file.stem, out, overwrite, no_folder)
    records = {
        label: taken.run(each, engine, label).record if taken else run_with_progress(each, engine, label)
        for label, each in scenarios.items()
    }
    runs = [(label, record, summarize(record)) for label, record in records.items()]
    result = {"policies": {label: output.plain(summary) for label, _, summary in runs}}
    table = overview_table({label: summary for label, _, summary in runs})
    if at.path is not None:
        with at.draft() as draft:
            notes = files.write_plan(draft, taken.to_yaml()) if taken else {}
            notes |= _write_runs(draft, scenarios, runs, not no_outcomes)
            folder.write_summary(draft, result)
            folder.write_tables(draft, [table])
            files.write_plots(
                draft, runs, f"{file.name}: {_offered(runs)}, the same arrivals for each policy"
            )
            folder.write_readme(draft, output.command_line(context), {**files.FILES, **notes})
    output.emit(json, result, [table], at.path)


def variants(scenario: Scenario, specs: list[str], placed: bool = False) -> dict[str, Scenario]:
    """All of them checked before the first is run; by a plan, if *placed*."""
    from astrarium.serving.policies import serving_policies
    from astrarium.serving.scenario import build

    def made(name: str, parameters: dict[str, Any]) -> Scenario:
        own = name == scenario.policy.name and not parameters
        variant = scenario if own else scenario.with_policy(name, **parameters)
        build.policy(variant, build.setup(variant, placed))
        return variant

    return variants_of(specs or serving_policies.names(), made)


def _write_runs(
    draft: Path, scenarios: dict[str, Scenario], runs: list[Run], outcomes: bool
) -> dict[str, str]:
    """A folder inside for each run; returns what to say of them."""
    from astrarium.cli.output import file_name
    from astrarium.run import folder
    from astrarium.serving.report import files

    notes = {}
    for label, record, summary in runs:
        place = folder.unused(draft / file_name(label))
        files.write_record(place, record, scenarios[label].to_yaml(), outcomes)
        folder.write_summary(place, summary)
        notes[place.name] = f"the run of {label}: summary, scenario, requests, batches, timeline"
    return notes


def _offered(runs: list[Run]) -> str:
    return f"{runs[0][2].offered_rate:,.0f} requests/s"
