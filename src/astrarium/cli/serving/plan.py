"""astrarium plan FILE"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astrarium.cli.opening import check_served, given
from astrarium.cli.options import Json, Overrides, Seed, ServingFile
from astrarium.cli.output import emit
from astrarium.cli.progress import status
from astrarium.core.errors import read_from

if TYPE_CHECKING:
    from astrarium.core.choice import Choice
    from astrarium.serving.planning.answer import PlanningAnswer, Question
    from astrarium.serving.planning.search import PlanningGoals
    from astrarium.serving.scenario import Scenario
from astrarium.cli.serving.plan_options import check_files, chosen, rivals, share

INTERRUPTED = 130
Gpus = Annotated[
    int | None,
    typer.Option("--gpus", metavar="N", help="Plan for N GPUs: the best attainment, not the fewest GPUs."),
]
Policy = Annotated[
    str, typer.Option("--policy", metavar="NAME", help="The policy; `astrarium policies` lists them.")
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("-p", "--parameter", metavar="KEY=VALUE", help="A parameter of the policy. Repeat it."),
]
Against = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="NAME,NAME",
        help="Compare with these on as many GPUs and the same requests, and each one's fewest GPUs. "
        "NAME:KEY=VALUE,... gives one of them parameters. Repeat it.",
    ),
]
Target = Annotated[
    str, typer.Option("--target", metavar="SHARE", help="How many of every model's requests must be in time.")
]
Seeds = Annotated[
    int, typer.Option("--seeds", metavar="N", help="Draws of fresh requests that every plan is judged on.")
]
Most = Annotated[int, typer.Option("--most", metavar="N", help="The most GPUs to try.")]
Interference = Annotated[
    str,
    typer.Option(
        "--interference",
        metavar="none|igniter|FILE",
        help="How replicas side by side on a GPU slow each other: not at all, by iGniter's model, or as "
        "measured in a file.",
    ),
]
Growth = Annotated[
    bool, typer.Option("--growth/--no-growth", help="Whether to find out what breaks first if load grows.")
]
Each = Annotated[
    bool | None,
    typer.Option(
        "--each/--no-each",
        help="Whether to find out how far each model can grow alone; if it is quick, unless told.",
        show_default=False,
    ),
]
OutFile = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write the plan there, as YAML or JSON by its ending."),
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the placement, as a .png.")]
Replace = Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")]

Stages = Annotated[
    bool,
    typer.Option(
        "--stages", help="Also say where time went, stage by stage: p50, p95 and p99 of each model."
    ),
]
RouterWait = Annotated[
    str | None,
    typer.Option(
        "--router-wait",
        metavar="TIME",
        help="With --plan: also follow the requests on the way of Elvinger's thesis, where a router makes "
        "each replica's batches and waits at most so long (its MAX_WAIT_TIME), such as 100ms.",
    ),
]


def plan(
    file: ServingFile,
    gpus: Gpus = None,
    policy: Policy = "planner",
    parameter: Parameters = None,
    against: Against = None,
    target: Target = "99%",
    seeds: Seeds = 3,
    most: Most = 512,
    interference: Interference = "none",
    growth: Growth = True,
    each: Each = None,
    override: Overrides = None,
    seed: Seed = None,
    out: OutFile = None,
    plot: Plot = None,
    overwrite: Replace = False,
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
    check_files(file, out, plot, overwrite)
    known, slowing = interference_named(interference)
    goals = PlanningGoals(share(target), seeds, most, known, slowing)
    question = Question(gpus, rivals(against or []), growth, each)
    choice = chosen(policy, parameter or [])
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
    from astrarium.serving.planning.picture import draw_placement

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
    from astrarium.serving.planning.plain import plain_answer

    if answer.interrupted:
        typer.echo("interrupted", err=True)
    files = {"out": str(out) if out else None, "plot": str(plot) if plot else None}
    written = [f"written to {path}" for path in (out, plot) if path is not None and answer.chosen is not None]
    emit(
        json, {**plain_answer(answer), **files}, [*tables.shown(answer), *map(tables.text_of, written)], None
    )
