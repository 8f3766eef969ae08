"""Figure 16: pipelines cut by hand and by the program of section 4.1 (section 6.6).

Cut by hand, every stage has the same number of layers; the embedding comes with the first and the head with
the last. The authors' times for that were not published, so they are predicted: operators by their floating
point operations, in shares of the measured time on one GPU. The architectures are those of the authors'
models; what they weigh, an embedding and a head of 51,200 words included, is what the profile says. The
program's cut was measured (the profile), and is predicted as well. The overhead is that of the paper: stages
times the slowest, less the time on one GPU. What stages lose to each other's messages was measured, and is
taken to be the same by hand.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from astrarium.core.quantities import SECOND
from astrarium.placement.problem import Shape
from astrarium_papers.alpaserve._common import transformer, workloads
from astrarium_papers.alpaserve._common.parallel import cut
from astrarium_papers.alpaserve._common.transformer import MODELS
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Pipelines cut by hand and by the program (Figure 16)"
PAPER = {"bert-1.3b": 0.329, "bert-2.6b": 0.467}  # of the overhead of 8 stages, what the program saves
STAGES = (1, 2, 4, 8)
MEASURED = "program, measured"
PROGRAM = "program, predicted"
HAND = "by hand, predicted"


def run(effort: Effort) -> Findings:
    data = {model: {str(stages): _overheads(model, stages) for stages in STAGES} for model in MODELS}
    return Findings(_rows(data), _claims(data), data)


def operators(model: str) -> list[float]:
    """Return the seconds of each layer's attention and of its two products, and of the head."""
    return [_alone(model) * share for share in MODELS[model].shares()]


def by_hand(model: str, stages: int) -> list[float]:
    """Return the seconds of each stage."""
    times = operators(model)
    edges = transformer.by_hand(MODELS[model].layers, stages)
    return [sum(times[a:b]) for a, b in pairwise(edges)]


def by_program(model: str, stages: int) -> list[float]:
    times = operators(model)
    edges = cut([round(time * SECOND) for time in times], stages)
    return [sum(times[a:b]) for a, b in pairwise(edges)]


def measured(model: str, stages: int) -> list[float]:
    form = workloads.measured(model)[Shape(stages)]
    return [time / SECOND for _, time in form.stage_times]


def _alone(model: str) -> float:
    return measured(model, 1)[0]


def _overheads(model: str, stages: int) -> dict[str, Any]:
    """Return seconds of messages, and of uneven stages by who cut them."""
    profile = measured(model, stages)
    ways = {
        MEASURED: profile,
        PROGRAM: by_program(model, stages),
        HAND: by_hand(model, stages),
    }
    uneven = {name: stages * max(times) - sum(times) for name, times in ways.items()}
    return {"alone": _alone(model), "messages": sum(profile) - _alone(model), "uneven": uneven}


def saved(overheads: dict[str, Any], by: str) -> float:
    """Return the part of the overhead by hand that is saved."""
    hand = overheads["messages"] + overheads["uneven"][HAND]
    return float(1 - (overheads["messages"] + overheads["uneven"][by]) / hand)


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for model, paper in PAPER.items():
        overheads = data[model]["8"]
        what = f"{model}, 8 stages: of the overhead by hand, the program saves"
        rows.append(Row(what, saved(overheads, MEASURED), paper, "", 0.1, _why(model, overheads, paper)))
        rows.append(Row(f"{what} (predicted)", saved(overheads, PROGRAM), None, "", 0.1, _ideal(overheads)))
    return rows


def _why(model: str, overheads: dict[str, Any], paper: float) -> str:
    """Return in words how long the head may take for the paper's number to come out."""
    overhead = (overheads["messages"] + overheads["uneven"][MEASURED]) / (1 - paper)
    slowest = (overhead + overheads["alone"]) / 8
    times = operators(model)
    head = times[-1]
    layers = by_hand(model, 8)[0]
    return (
        f"by hand, the last stage is predicted to take {1000 * (layers + head):.1f} ms; the paper's number "
        f"needs {1000 * slowest:.1f} ms, so that a head, one large product, would run faster than its "
        "operations say"
    )


def _ideal(overheads: dict[str, Any]) -> str:
    measured, predicted = (1000 * overheads["uneven"][name] for name in (MEASURED, PROGRAM))
    return (
        f"uneven stages cost {predicted:.1f} ms here and {measured:.1f} as measured: ours cuts beside "
        "attention and products, theirs anywhere, and equal layers do not take equal times"
    )


def _claims(data: dict[str, Any]) -> list[Claim]:
    eight = {model: data[model]["8"] for model in MODELS}
    note = ", ".join(
        f"{model} {100 * saved(overheads, MEASURED):.0f} %" for model, overheads in eight.items()
    )
    small, large = (saved(eight[model], MEASURED) for model in MODELS)
    uneven = ", ".join(
        f"{model} {1000 * overheads['uneven'][MEASURED]:.1f} to {1000 * overheads['messages']:.1f} ms"
        for model, overheads in eight.items()
    )
    return [
        Claim("the program's stages cost less than equal numbers of layers", min(small, large) > 0.2, note),
        Claim("it saves more with the larger model", large > small, note),
        Claim(
            "most of the overhead comes from uneven stages, not from messages",
            all(overheads["uneven"][MEASURED] > overheads["messages"] for overheads in eight.values()),
            uneven,
            given=True,  # both were measured by the authors
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(data), 4.8)
    names = ((HAND, "#9ECAE1"), (PROGRAM, "#6BAED6"), (MEASURED, "#08519C"))
    for axis, (model, by_stages) in zip(axes, data.items(), strict=True):
        for place, (name, color) in enumerate(names):
            at = [number + 0.27 * (place - 1) for number in range(len(by_stages))]
            base = [overheads["alone"] for overheads in by_stages.values()]
            messages = [overheads["messages"] for overheads in by_stages.values()]
            uneven = [overheads["uneven"][name] for overheads in by_stages.values()]
            axis.bar(at, base, 0.25, color="#DDDDDD", label="" if place else "on one GPU")
            axis.bar(at, messages, 0.25, bottom=base, color="#E69F00", label="" if place else "messages")
            tops = [low + more for low, more in zip(base, messages, strict=True)]
            axis.bar(at, uneven, 0.25, bottom=tops, color=color, label=f"uneven: {name}")
        axis.set_xticks(range(len(by_stages)), list(by_stages))
        axis.set(xlabel="stages", ylabel="stages times the slowest (s)", title=model)
        axis.set_ylim(0.6 * min(base), None)
    axes[0].legend(fontsize=8)
    save(figure, path)
