"""astrarium plan FILE"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from astrarium.cli.opening import check_served, given
from astrarium.cli.options import Json, Overrides, Seed, ServingFile
from astrarium.cli.output import emit, status
from astrarium.cli.serving import plan_options as options
from astrarium.core.errors import read_from

if TYPE_CHECKING:
    from astrarium.core.choice import Choice
    from astrarium.serving.planning.answer import PlanningAnswer, Question
    from astrarium.serving.planning.search import PlanningGoals
    from astrarium.serving.scenario import Scenario

INTERRUPTED = 130


def plan(
    file: ServingFile,
    gpus: options.Gpus = None,
    policy: options.Policy = "planner",
    parameter: options.Parameters = None,
    against: options.Against = None,
    target: options.Target = "99%",
    seeds: options.Seeds = 3,
    most: options.Most = 512,
    interference: options.Interference = "none",
    growth: options.Growth = True,
    each: options.Each = None,
    override: Overrides = None,
    seed: Seed = None,
    out: options.OutFile = None,
    plot: options.Plot = None,
    overwrite: options.Replace = False,
    json: Json = False,
) -> None:
    """Say where models go, how few GPUs are enough, and what breaks first if load grows.

    Plans are judged on fresh requests, never on those that they were made with. `astrarium simulate FILE
    --plan PLAN` runs one. An interrupt (Ctrl-C) keeps the best plan so far.
    """
    from astrarium.serving.planning.answer import Question
    from astrarium.serving.planning.known import interference_named
    from astrarium.serving.planning.search import PlanningGoals
    from astrarium.serving.scenario import load

    check_served(file, "are not placed, models are")
    options.check_files(file, out, plot, overwrite)
    known, slowing = interference_named(interference)
    goals = PlanningGoals(options.share(target), seeds, most, known, slowing)
    question = Question(gpus, options.rivals(against or []), growth, each)
    choice = options.chosen(policy, parameter or [])
    scenario = load(file, given(override, seed), planning=True)
    with read_from(file):
        answer = _answered(scenario, choice, goals, question)
    _write(answer, out, plot, file.name)
    _emit(answer, json, out, plot)
    if answer.interrupted:
        raise typer.Exit(INTERRUPTED)


def _answered(scenario: Scenario, choice: Choice, goals: PlanningGoals, question: Question) -> PlanningAnswer:
    from astrarium.serving.planning.answer import answered
    from astrarium.serving.planning.search import PlanningWatch

    with status("planning") as say:
        return answered(scenario, choice, goals, question, PlanningWatch(say))


def _write(answer: PlanningAnswer, out: Path | None, plot: Path | None, name: str) -> None:
    from astrarium.serving.planning import plans
    from astrarium.serving.planning.tables import draw_placement

    chosen = answer.chosen
    if chosen is None:
        return
    if out is not None:
        plans.save(out, chosen.plan, chosen.problem)
    if plot is not None:
        names = [model.name for model in chosen.problem.models]
        in_time = "" if chosen.judged is None else f", {chosen.judged.overall.mean:.2%} in time"
        title = f"{name}: {answer.choice.label} on {chosen.gpus} GPUs{in_time}"
        draw_placement(chosen.uses, names, plot, title)


def _emit(answer: PlanningAnswer, json: bool, out: Path | None, plot: Path | None) -> None:
    from astrarium.serving.planning import tables
    from astrarium.serving.planning.answer import told

    if answer.interrupted:
        typer.echo("interrupted", err=True)
    files = {"out": str(out) if out else None, "plot": str(plot) if plot else None}
    written = [f"written to {path}" for path in (out, plot) if path is not None and answer.chosen is not None]
    emit(json, {**told(answer), **files}, [*tables.shown(answer), *map(tables.line, written)], None)
