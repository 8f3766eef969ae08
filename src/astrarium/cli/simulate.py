"""astrarium simulate FILE [-p POLICY]"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from astrarium.cli.options import (
    EngineOption,
    Json,
    NoFolder,
    NoOutcomes,
    OnePolicy,
    Out,
    Overrides,
    Overwrite,
    PlanFile,
    ScenarioFile,
    Seed,
)
from astrarium.cli.serving.plan_options import Interference, RouterWait, Stages

if TYPE_CHECKING:
    from astrarium.core.trace import Step


class Traced:
    """Hears every step of a run, and keeps it as the line of a trace for `astrarium replay`."""

    def __init__(self) -> None:
        import msgspec

        from astrarium.core.level import Watching

        self._lines: list[bytes] = []
        self._encoder = msgspec.json.Encoder()
        self.watching = Watching(trace=self._hear)

    def _hear(self, step: Step) -> None:
        self._lines.append(self._encoder.encode(step))

    def files(self) -> dict[str, bytes]:
        from astrarium.run.folder import TRACE

        return {TRACE: b"".join(line + b"\n" for line in self._lines)}


Trace = Annotated[
    bool, typer.Option("--trace", help="Keep every event and decision in the folder, for `replay`.")
]


def simulate(
    context: typer.Context,
    file: ScenarioFile,
    policy: OnePolicy = None,
    plan: PlanFile = None,
    interference: Interference = "none",
    stages: Stages = False,
    router: RouterWait = None,
    override: Overrides = None,
    seed: Seed = None,
    engine: EngineOption = "auto",
    trace: Trace = False,
    json: Json = False,
    out: Out = None,
    overwrite: Overwrite = False,
    no_outcomes: NoOutcomes = False,
    no_folder: NoFolder = False,
) -> None:
    """Run a scenario of any level in the simulator."""
    from astrarium.cli import output
    from astrarium.cli.opening import opened, read_from, refuse, told_bar
    from astrarium.cli.serving.planned import planned_run, staged
    from astrarium.core.errors import InputError
    from astrarium.run.experiment import simulate as run_one

    if plan is not None or router is not None or interference != "none":
        if trace:
            raise InputError("--trace", None, "no --plan beside it: its cells have a policy each")
        at = output.target("simulate", file.stem, out, overwrite, no_folder)
        planned_run(context, file, policy, plan, interference, stages, router, override, seed, engine, at,
                    json, not no_outcomes)  # fmt: skip
        return
    level, scenario = opened(file, override, seed, policy)
    refuse(level, "serving", {"--stages": stages})
    at = output.target("simulate", file.stem, out, overwrite, no_folder)
    steps = Traced() if trace else None
    with read_from(file):
        watching = steps.watching if steps else None
        run = run_one(level, scenario, engine=engine, bar=told_bar(file, level), watching=watching)
    title = f"{file.name}: {run.label}, {level.report.title(run)}"
    told = staged(run) if stages else None
    output.finish(
        context, at, [run], title, json, not no_outcomes,
        more=[told.table] if told else [],
        shown={"stages": told.plain} if told else None,
        files=steps.files() if steps else None,
    )  # fmt: skip
