"""astrarium simulate FILE [-p POLICY]"""

from __future__ import annotations

from typing import Annotated

import typer

from astrarium.cli import options, output
from astrarium.cli.opening import Asked, engine_option, opened, refuse, told_bar
from astrarium.cli.serving.plan_options import Interference, RouterWait, Stages
from astrarium.core.errors import InputError, read_from

Trace = Annotated[
    bool, typer.Option("--trace", help="Keep every event and decision in the folder, for `replay`.")
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

        found = planned_run(asked, policy, plan, interference, stages, router)
    else:
        found = _simulated(asked, policy, stages, trace)
    output.finish(context, at, found, json, not no_outcomes)


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
    found = output.Results([run], title, files={TRACE: as_trace(steps)} if trace else {})
    if not stages:
        return found
    from astrarium.cli.serving.planned import staged

    told = staged(run)
    return found._replace(more=[told.table], shown={"stages": told.plain})
