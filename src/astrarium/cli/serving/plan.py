"""astrarium plan FILE"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astrarium.cli.opening import check_served, given
from astrarium.cli.options import Json, Overrides, Seed, ServingFile
from astrarium.cli.output import emit, status
from astrarium.core.errors import InputError, read_from
from astrarium.core.quantities import duration_in

if TYPE_CHECKING:
    from astrarium.core.choice import Choice
    from astrarium.serving.planning.answer import PlanningAnswer, Question
    from astrarium.serving.planning.search import PlanningGoals
    from astrarium.serving.scenario import Scenario

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

_PICTURES = (".png",)


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


# What was written, read into what planning takes.


def router_wait(text: str | None, planned: bool) -> int | None:
    if text is None:
        return None
    if not planned:
        raise InputError("--router-wait", text, "a --plan beside it, whose replicas have queues")
    return duration_in("--router-wait", text)


def share(text: str) -> float:
    """'99%' or '0.99'"""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = 0.0
    if rest.strip() or not 0 < value <= 1:
        raise InputError("--target", text, "a share above 0 and up to 100%, such as 99% or 0.99")
    return value


def chosen(name: str, parameters: list[str], option: str = "-p") -> Choice:
    from astrarium.core.choice import Choice
    from astrarium.core.overrides import pairs

    expected = f"KEY=VALUE, a parameter of {name}: see `astrarium policies {name}`"
    return Choice(name, pairs(parameters, option, expected))


def rivals(texts: list[str]) -> tuple[Choice, ...]:
    """'alpaserve,usher:cluster=open,group=2' are two, the second with parameters."""
    found: list[tuple[str, list[str]]] = []
    for text in texts:
        for piece in _pieces(text):
            name, colon, first = piece.partition(":")
            if "=" in name and found:
                found[-1][1].append(piece)
            elif name.strip():
                found.append((name.strip(), [first] if colon else []))
            else:
                raise InputError("--against", text, "names of placement policies, such as alpaserve,usher")
    return tuple(chosen(name, parameters, "--against") for name, parameters in found)


def _pieces(text: str) -> list[str]:
    """Between the commas, but for those inside brackets."""
    found = [""]
    depth = 0
    for sign in text:
        depth += (sign in "{[") - (sign in "}]")
        if sign == "," and depth == 0:
            found.append("")
        else:
            found[-1] += sign
    return [piece.strip() for piece in found]


def check_files(scenario: Path, out: Path | None, plot: Path | None, overwrite: bool) -> None:
    """Before the work begins."""
    from astrarium.serving.planning.plans import ENDINGS

    if out is not None and out.resolve() == scenario.resolve():
        raise InputError("--out", str(out), "another file: this is the scenario")
    _check_file("--out", out, ENDINGS, overwrite)
    _check_file("--plot", plot, _PICTURES, overwrite)


def _check_file(option: str, path: Path | None, endings: tuple[str, ...], overwrite: bool) -> None:
    if path is None:
        return
    if path.suffix not in endings:
        raise InputError(option, str(path), f"a name that ends in {', '.join(endings)}")
    if not path.resolve().parent.is_dir():
        raise InputError(option, str(path), "a file in a folder that is there")
    if path.is_dir() or (path.exists() and not overwrite):
        raise InputError(option, str(path), "a file that is not there yet, or --overwrite")
