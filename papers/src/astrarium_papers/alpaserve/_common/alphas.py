"""Section 3.3: pipelines whose stages have the overhead alpha, which is all the overhead there is."""

from __future__ import annotations

from typing import Any

import msgspec

from astrarium.core.quantities import SECOND
from astrarium.placement.problem import ALONE, Form, PlacedModel
from astrarium_papers.alpaserve._common import cases
from astrarium_papers.alpaserve._common.served import Statistics
from astrarium_papers.alpaserve._common.settings import (
    COLORS,
    COPIES,
    COUNT,
    CV,
    MODEL,
    PARALLEL,
    PIPELINE,
    REPLICATION,
    WITHOUT_OVERHEADS,
    crossing,
    equally,
    fared,
    means,
    pipelined,
    replicated,
    sweep,
    traffic,
)
from astrarium_papers.findings import Claim, Effort

BUSY_RATE = 30.0
TIGHT = 5.0  # times a model's own latency
ALPHAS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)


def with_overheads(effort: Effort, scales: tuple[float, ...], seconds: float, seeds: int) -> dict[str, Any]:

    def measure(scale: float, seed: int) -> dict[str, Statistics]:
        workload = traffic(equally(BUSY_RATE), CV, seconds, seed)
        whole = pipelined(COUNT, COUNT, PIPELINE.stages)
        forms = {
            f"{alpha:g}": fared(models(alpha, scale), whole, workload, WITHOUT_OVERHEADS) for alpha in ALPHAS
        }
        copies = replicated(COUNT, COPIES)
        return {**forms, REPLICATION: fared(models(1.0, scale), copies, workload, WITHOUT_OVERHEADS)}

    return sweep(effort, scales, seeds, measure, "overheads, SLO")


def models(alpha: float, scale: float) -> list[PlacedModel]:
    """Return models whose stages each take alpha / n of what the model takes alone."""
    measured = cases.placed_models([MODEL] * COUNT, equally(BUSY_RATE), scale)
    return [msgspec.structs.replace(model, forms=_forms(model, alpha)) for model in measured]


def _forms(model: PlacedModel, alpha: float) -> dict[Any, Form]:
    alone = model.forms[ALONE]
    stage = int(alpha * alone.latency(1) / PIPELINE.stages)  # never a nanosecond too much
    pipeline = model.forms[PIPELINE]
    stages = ((0, stage),) * PIPELINE.stages
    return {ALONE: alone, PIPELINE: msgspec.structs.replace(pipeline, stage_times=stages)}


def caught_up(scales: list[float], placements: dict[str, Any], name: str = PARALLEL) -> float | None:
    ours, theirs = (means(placements[system], "attainment") for system in (name, REPLICATION))
    return crossing(scales, [a - b for a, b in zip(ours, theirs, strict=True)])


def overhead_claims(data: dict[str, Any]) -> list[Claim]:
    overheads = data["overheads"]
    scales = data["values"]
    gaps = {
        name: [
            a - b
            for a, b in zip(
                means(overheads[name], "attainment"), means(overheads[REPLICATION], "attainment"), strict=True
            )
        ]
        for name in overheads
        if name != REPLICATION
    }
    crossed = {name: caught_up(scales, overheads, name) for name in gaps}
    tight = {
        name: max(gap for at, gap in zip(scales, gaps[name], strict=True) if at <= TIGHT) for name in gaps
    }
    shown = ", ".join(f"{name}: {'never' if at is None else f'{at:.1f}x'}" for name, at in crossed.items())
    return [
        _always_better(scales, gaps["1"]),
        Claim(
            "with overhead it is still better where SLOs are tight",
            min(tight.values()) > 0,
            f"most it gains at {TIGHT:g}x or tighter, by alpha: "
            + ", ".join(f"{name}: {gap:+.1%}" for name, gap in tight.items())
            + f". With 1.5 the pipeline serves at most {_most(1.5):.0f} of the {BUSY_RATE:g} requests/s",
        ),
        Claim(
            "the larger the overhead, the tighter the SLO at which replication catches up",
            _falling([at if at is not None else scales[-1] + 1 for at in crossed.values()]),
            f"by alpha, {shown}",
        ),
    ]


def _always_better(scales: list[float], gaps: list[float]) -> Claim:
    worse = [f"{at:g}x ({gap:+.1%})" for at, gap in zip(scales, gaps, strict=True) if gap < 0]
    why = (
        f"not at {', '.join(worse)}: at 1x nobody may wait at all, not even for the first stage. With the "
        "authors' overheads nobody is in time there, whatever the placement; elsewhere "
    )
    better = [gap for gap in gaps if gap >= 0]
    gain = f"it answers {min(better):.1%} to {max(better):.1%} more of all requests in time"
    return Claim(
        "without overhead model parallelism is always better", not worse, (why if worse else "") + gain
    )


def _most(alpha: float) -> float:
    """Return the most requests a second that the pipeline serves."""
    return SECOND / models(alpha, 1.0)[0].forms[PIPELINE].interval(1)


def _falling(values: list[float]) -> bool:
    return values == sorted(values, reverse=True) and values[0] > values[-1]


def draw_overheads(axis: Any, data: dict[str, Any]) -> None:
    for place, alpha in enumerate(ALPHAS):
        curve = [100 * share for share in means(data["overheads"][f"{alpha:g}"], "attainment")]
        style = {"marker": ".", "color": COLORS[PARALLEL], "alpha": 1 - 0.15 * place}
        axis.plot(data["values"], curve, label=f"alpha {alpha:g}", **style)
    curve = [100 * share for share in means(data["overheads"][REPLICATION], "attainment")]
    axis.plot(data["values"], curve, marker=".", color=COLORS[REPLICATION], label=REPLICATION)
    axis.legend(fontsize=7)
