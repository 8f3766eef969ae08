"""What `simulate` and `compare` do with a plan, and with the ways that requests go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from astrarium.cli import output
from astrarium.cli.opening import Asked, given, refuse, seeded, tell, variant, variants
from astrarium.cli.progress import bar
from astrarium.cli.serving.plan_options import router_wait
from astrarium.core.errors import InputError
from astrarium.core.level import Level, Run
from astrarium.core.plain_data import read_yaml
from astrarium.core.quantities import Time
from astrarium.levels import named_by
from astrarium.placement.evaluation import Evaluation, stage_report
from astrarium.placement.interference import Interference
from astrarium.placement.plan import Plan
from astrarium.placement.problem import Problem
from astrarium.run.experiment import EngineName
from astrarium.run.report import struct_as_dict
from astrarium.serving.level import LEVEL
from astrarium.serving.planned.run import PlannedRun, run_planned
from astrarium.serving.planning import plans
from astrarium.serving.planning.known import interference_named
from astrarium.serving.planning.stages import on_path, stages_of
from astrarium.serving.record import ServingRecord
from astrarium.serving.report.files import PLAN
from astrarium.serving.report.planned import PlanSummary, cell_table, summarize_plan
from astrarium.serving.report.stages import plain_lines, stage_table
from astrarium.serving.report.summary import summarize
from astrarium.serving.scenario import Scenario, build, load

ServingRun = Run[Scenario, ServingRecord]


class Section(NamedTuple):
    """The same facts for people and for --json."""

    table: Any
    plain: Any


class PlanTaken(NamedTuple):
    """A plan from a file, what it was checked against, and how replicas that share a GPU slow each other."""

    plan: Plan
    problem: Problem
    interference: Interference | None

    @classmethod
    def read(cls, file: Path | None, scenario: Scenario, interference: str) -> PlanTaken:
        if file is None:
            raise InputError("--interference", interference, "a --plan beside it, which shares GPUs")
        known, slowing = interference_named(interference)
        problem = known(plans.problem(scenario, planning=False))
        return cls(plans.load(file, problem), problem, slowing(problem) if slowing else None)

    def to_yaml(self) -> str:
        return plans.to_yaml(self.plan, self.problem)

    def run(self, scenario: Scenario, engine: str, label: str) -> tuple[PlannedRun, ServingRun]:
        chosen = cast("EngineName", engine)
        with bar(f"simulating {label}", scenario.length) as progress:
            done = run_planned(scenario, self.plan, self.problem, self.interference, chosen, progress)
        return done, Run(LEVEL, scenario, label, done.record, summarize(done.record))

    def summary(self, done: PlannedRun) -> PlanSummary:
        plan = self.plan
        missing = {self.problem.models[index].name: why for index, why in plan.missing.items()}
        return summarize_plan(plan.policy, len(plan.replicas), missing, done.parts, done.record)

    def on_path(self, scenario: Scenario, max_wait: Time) -> Evaluation:
        return on_path(scenario, self.plan, self.problem, max_wait, self.interference)


def planned_run(
    asked: Asked, policy: str | None, plan: Path | None, interference: str, stages: bool, router: str | None
) -> output.Results:
    """Run a scenario by a plan: models live only where it says."""
    max_wait = router_wait(router, plan is not None)
    scenario, taken = _opened(asked, plan, interference)
    if policy is not None:
        scenario = variant(_placed(), scenario, policy)
    done, run = taken.run(scenario, asked.engine, scenario.policy.label)
    placed = taken.summary(done)
    more = [cell_table(placed)]
    shown = {"plan": struct_as_dict(placed)}
    for name, section in (
        ("stages", staged(run, done) if stages else None),
        ("router", routed(taken.on_path(scenario, max_wait), router or "") if max_wait is not None else None),
    ):
        if section is not None:
            more = [*more, section.table]
            shown = {**shown, name: section.plain}
    title = f"{asked.file.name}: {run.label}, {run.level.title(run)}"
    return output.Results([run], title, more, shown, *_plan_file(taken))


def compare_planned(
    asked: Asked, policy: list[str] | None, plan: Path | None, interference: str, seeds: int
) -> output.Results:
    """Run several policies by the same plan."""
    scenario, taken = _opened(asked, plan, interference)
    chosen = variants(_placed(), scenario, policy or ["all"])
    runs = [taken.run(drawn, asked.engine, label)[1] for label, drawn in seeded(chosen, seeds)]
    title = f"{asked.file.name}: {runs[0].level.title(runs[0])}, the same arrivals for each policy"
    return output.Results(runs, title, (), output.by_policy(runs), *_plan_file(taken))


def _plan_file(taken: PlanTaken) -> tuple[dict[str, str], dict[str, str]]:
    return {PLAN: taken.to_yaml()}, {PLAN: "the plan that was run: which models live on which GPUs"}


def _opened(asked: Asked, plan: Path | None, interference: str) -> tuple[Scenario, PlanTaken]:
    file = asked.file
    level = named_by(read_yaml(file), str(file))
    refuse(level, "serving", {"--plan": plan, "--interference": interference})
    scenario = load(file, given(asked.override, asked.seed), planning=True)
    taken = PlanTaken.read(plan, scenario, interference)
    tell(file, level)
    return scenario, taken


def _placed() -> Level[Scenario, ServingRecord]:
    """Return the level for models that need not fit all together on every GPU."""

    return replace(LEVEL, policy_arguments=lambda scenario: (build.setup(scenario, placed=True),))


def staged(run: ServingRun, done: PlannedRun | None = None) -> Section:
    """Return where time went in a run, stage by stage."""
    lines = stages_of(run.record, done.parts if done else ())
    attained = {name: model.attainment for name, model in run.summary.models.items()}
    return Section(stage_table(lines, attained), plain_lines(lines))


def routed(evaluation: Evaluation, wait: str) -> Section:
    """Return where time went by the way of a router, without stages that take no time at all."""
    lines = [line for line in stage_report(evaluation) if line.part > 0]
    attained = {model.name: model.attainment for model in evaluation.models}
    title = f"where time went with a router that waits {wait} at most"
    data = {
        "max_wait": wait,
        "attainment": evaluation.attainment,
        "models": attained,
        "stages": plain_lines(lines),
    }
    return Section(stage_table(lines, attained, title), data)
