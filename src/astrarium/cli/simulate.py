"""astrarium simulate FILE [-p POLICY], astrarium compare FILE -p POLICY -p POLICY, astrarium replay PATH"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from astrarium.cli import options, output
from astrarium.cli.opening import Asked, engine_option, opened, refuse, seeded, tell, told_bar, variants
from astrarium.cli.serving.plan import Interference, RouterWait, Stages
from astrarium.core.errors import InputError, read_from

Trace = Annotated[
    bool, typer.Option("--trace", help="Keep every event and decision in the folder, for `replay`.")
]
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
DIVERGED = 1
Recorded = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="What `serve --record` wrote, or a run folder with a trace (`simulate --trace`, a live search).",
    ),
]


def simulate(
    context: typer.Context,
    file: options.ScenarioFile,
    policy: options.OnePolicy = None,
    plan: options.PlanFile = None,
    interference: Interference = "none",
    stages: Stages = False,
    router: RouterWait = None,
    override: options.Overrides = None,
    seed: options.Seed = None,
    engine: options.EngineOption = "auto",
    trace: Trace = False,
    json: options.Json = False,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    no_outcomes: options.NoOutcomes = False,
    no_folder: options.NoFolder = False,
) -> None:
    """Run a scenario of any level in the simulator."""
    at = output.target("simulate", file.stem, out, overwrite, no_folder)
    asked = Asked(file, override, seed, engine)
    if plan is not None or router is not None or interference != "none":
        if trace:
            raise InputError("--trace", None, "no --plan beside it: its cells have a policy each")
        from astrarium.cli.serving.planned import planned_run

        results = planned_run(asked, policy, plan, interference, stages, router)
    else:
        results = _simulated(asked, policy, stages, trace)
    output.finish(context, at, results, json, not no_outcomes)


def _simulated(asked: Asked, policy: str | None, stages: bool, trace: bool) -> output.Results:
    from astrarium.core.level import Watching
    from astrarium.core.trace import Step, as_trace
    from astrarium.run.experiment import simulate as run_one
    from astrarium.run.folder import TRACE

    file, override, seed, engine = asked
    level, scenario = opened(file, override, seed, policy)
    refuse(level, "serving", {"--stages": stages})
    steps = list[Step]()
    with read_from(file), engine_option():
        watching = Watching(steps.append) if trace else None
        run = run_one(level, scenario, engine=engine, bar=told_bar(file, level), watching=watching)
    title = f"{file.name}: {run.label}, {level.title(run)}"
    results = output.Results([run], title, files={TRACE: as_trace(steps)} if trace else {})
    if not stages:
        return results
    from astrarium.cli.serving.planned import staged

    where = staged(run)
    return results._replace(more=[where.table], shown={"stages": where.plain})


def compare(
    context: typer.Context,
    file: options.ScenarioFile,
    policy: Policies = None,
    plan: options.PlanFile = None,
    interference: Interference = "none",
    override: options.Overrides = None,
    seed: options.Seed = None,
    seeds: Seeds = 1,
    engine: options.EngineOption = "auto",
    json: options.Json = False,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    no_outcomes: options.NoOutcomes = False,
    no_folder: options.NoFolder = False,
) -> None:
    """Run several policies on the same scenario, of any level."""
    at = output.target("compare", file.stem, out, overwrite, no_folder)
    asked = Asked(file, override, seed, engine)
    if plan is not None or interference != "none":
        from astrarium.cli.serving.planned import compare_planned

        results = compare_planned(asked, policy, plan, interference, seeds)
    else:
        results = _compared(asked, policy, seeds)
    output.finish(context, at, results, json, not no_outcomes)


def _compared(asked: Asked, policy: list[str] | None, seeds: int) -> output.Results:
    from astrarium.run.experiment import simulate as run_one

    file, override, seed, engine = asked
    level, scenario = opened(file, override, seed)
    chosen = variants(level, scenario, policy or ["all"])
    shown = told_bar(file, level)
    with read_from(file), engine_option():
        runs = [
            run_one(level, drawn, label=label, engine=engine, bar=shown)
            for label, drawn in seeded(chosen, seeds)
        ]
    title = f"{file.name}: {level.title(runs[0])}, the same for each policy"
    return output.Results(runs, title, shown=output.by_policy(runs))


def replay(path: Recorded, policy: options.OnePolicy = None) -> None:
    """Feed a recorded run, of any level, through a fresh policy: does it decide the same?"""
    from astrarium.api.runs import replay_file

    try:
        replayed = replay_file(path, policy, tell)
    except InputError as error:
        field = "PATH" if error.field == "source" else error.field
        of_policy = policy is not None and field.startswith("policy")
        source = error.source or (f"-p {policy}" if of_policy else "")
        raise InputError(field, error.value, error.expected, source) from None
    print(f"{path}: {replayed}" + (f" of {replayed.parts} part(s)" if replayed else ""))
    if replayed.cut:
        print("It was cut off there: its server was killed, or could not write any more.")
    if not replayed:
        raise typer.Exit(DIVERGED)
