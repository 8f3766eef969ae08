"""A simulated run with a progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from astrarium.cli.progress import bar

if TYPE_CHECKING:
    from astrarium.core.units import Time
    from astrarium.placement.evaluation import Evaluation
    from astrarium.placement.interference import Interference
    from astrarium.placement.plan import Plan
    from astrarium.placement.problem import Problem
    from astrarium.serving.level import EngineName
    from astrarium.serving.planned.run import PlannedRun
    from astrarium.serving.record import ServingRecord
    from astrarium.serving.report.planned import PlanSummary
    from astrarium.serving.scenario import Scenario


def run_with_progress(scenario: Scenario, engine: str, label: str = "") -> ServingRecord:
    from astrarium.serving.level import run

    with bar(f"simulating {label or scenario.policy.name}", scenario.workload.duration or 0) as progress:
        return run(scenario, cast("EngineName", engine), progress)


class PlanTaken(NamedTuple):
    """A plan from a file, what it was checked against, and how replicas that share a GPU slow each other."""

    plan: Plan
    problem: Problem
    interference: Interference | None

    @classmethod
    def read(cls, file: Path | None, scenario: Scenario, interference: str) -> PlanTaken | None:
        from astrarium.core.errors import InputError
        from astrarium.serving.planning import plans
        from astrarium.serving.planning.known import interference_named

        if file is None:
            if interference != "none":
                raise InputError("--interference", interference, "a --plan beside it, which shares GPUs")
            return None
        known, slowing = interference_named(interference)
        problem = known(plans.problem(scenario, planning=False))
        return cls(plans.load(file, problem), problem, slowing(problem) if slowing else None)

    def to_yaml(self) -> str:
        from astrarium.serving.planning import plans

        return plans.to_yaml(self.plan, self.problem)

    def run(self, scenario: Scenario, engine: str, label: str = "") -> PlannedRun:
        from astrarium.serving.planned.run import run_planned

        chosen = cast("EngineName", engine)
        with bar(f"simulating {label or scenario.policy.name}", scenario.workload.duration or 0) as progress:
            return run_planned(scenario, self.plan, self.problem, self.interference, chosen, progress)

    def summary(self, done: PlannedRun) -> PlanSummary:
        from astrarium.serving.report.planned import summarize_plan

        plan = self.plan
        missing = {self.problem.models[index].name: why for index, why in plan.missing.items()}
        return summarize_plan(plan.policy, len(plan.replicas), missing, done.parts, done.record)

    def on_path(self, scenario: Scenario, max_wait: Time) -> Evaluation:
        from astrarium.serving.planning.stages import on_path

        return on_path(scenario, self.plan, self.problem, max_wait, self.interference)
