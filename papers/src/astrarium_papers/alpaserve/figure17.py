"""Figure 17: what each part of the placement algorithm brings, on S3 (section 6.6).

60 models on 32 GPUs, 200 s, five times the latency; rates fall with a power law. The authors' public
repository records what their simulator gave (experiments/ablation, two files made with different versions of
their search): those numbers stand beside ours as published.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from astrarium_papers.alpaserve._common import workloads
from astrarium_papers.alpaserve._common.cases import Case
from astrarium_papers.alpaserve._common.panels import (
    GOAL,
    LABELS,
    OURS,
    Gain,
    behind_of,
    draw_panel,
    gain,
    reached,
    spelled,
)
from astrarium_papers.alpaserve._common.sweeps import (
    WAYS,
    Placer,
    Sweep,
    greedy,
    placing,
    planner,
    searching,
    swept,
)
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "What each part of the placement algorithm brings, S3 on 32 GPUs (Figure 17)"
ROUND_ROBIN = "Round robin"
GREEDY = "Greedy"
GROUPS = "Greedy and groups"
EXCHANGES = "Greedy, groups, exchanges"  # ours
COLORS = {
    ROUND_ROBIN: "#009E73",
    GREEDY: "#D55E00",
    GROUPS: "#0072B2",
    EXCHANGES: "#56B4E9",
    OURS: "#000000",
}
STAGES = 4
PAPER: dict[str, Placer] = {
    ROUND_ROBIN: placing("round-robin", {"stages": STAGES}),
    GREEDY: greedy(STAGES),
    GROUPS: searching(),
}
VALUES = {"rate": (8, 16, 24, 32, 48, 64, 80, 96, 128), "cv": (0.5, 1, 1.5, 2, 3, 4, 5, 6, 7, 8)}
# How many times more groups allow than greedy placement alone, at 99 %
MORE = {"rate": 1.5, "cv": 1.3}
# By knob and value: the least and the most of the two files, where they were at hand
RECORDED: dict[str, dict[str, dict[float, tuple[float, float]]]] = {
    "rate": {
        ROUND_ROBIN: {16: (0.948, 0.948), 24: (0.942, 0.942), 64: (0.875, 0.875), 96: (0.81, 0.81)},
        GREEDY: {
            8: (0.984, 0.991),
            16: (0.983, 0.983),
            24: (0.974, 0.974),
            64: (0.871, 0.898),
            96: (0.817, 0.826),
            128: (0.712, 0.76),
        },
        GROUPS: {
            8: (0.987, 0.987),
            16: (0.991, 0.996),
            64: (0.952, 0.96),
            96: (0.901, 0.908),
            128: (0.821, 0.821),
        },
    },
    "cv": {
        ROUND_ROBIN: {
            1.5: (0.957, 0.957),
            2: (0.953, 0.953),
            5: (0.817, 0.817),
            6: (0.743, 0.743),
            8: (0.594, 0.594),
        },
        GREEDY: {
            1: (1.0, 1.0),
            1.5: (0.993, 0.993),
            2: (0.98, 0.98),
            5: (0.834, 0.834),
            8: (0.658, 0.658),
        },
        GROUPS: {
            0.5: (1.0, 1.0),
            1: (1.0, 1.0),
            1.5: (0.998, 0.998),
            2: (0.988, 0.988),
            3: (0.96, 0.96),
            5: (0.934, 0.934),
            7: (0.824, 0.824),
            8: (0.718, 0.752),
        },
    },
}
OUR_SEARCH = "our search keeps the best it has seen, theirs what it ends with"
FLAT = "curves are flat near 99 %, so that where they cross it depends much on the traffic"


def run(effort: Effort) -> Findings:
    placers = {**PAPER, EXCHANGES: placing("alpaserve"), **planner(effort)}
    curves = [(system, ways) for ways in WAYS for system in (PAPER if ways != "fair" else placers)]
    models, gpus, seconds = effort.pick((12, 8, 40.0), (60, 32, 200.0))
    case = Case(workloads.SETS["S3"][:models], gpus, 64.0 * gpus / 32, seconds=seconds)
    sweeps = {
        knob: Sweep(case, knob, values[:: effort.pick(5, 1)], curves, effort.pick(1, 3))
        for knob, values in VALUES.items()
    }
    data = {"seconds": case.seconds, "panels": swept(sweeps, placers, effort)}
    return Findings(_rows(data), _claims(data), data)


def _rows(data: dict[str, Any]) -> list[Row]:
    return [*_gains(data), *([] if data["seconds"] < 200 else _recorded(data))]


def _gains(data: dict[str, Any]) -> list[Row]:
    rows = []
    for knob, paper in MORE.items():
        for ways in WAYS:
            gained = gain(data["panels"][knob], ways, GROUPS, GREEDY)
            if gained is not None:
                what = f"{ways}: how much more {LABELS[knob]} with groups than without, at 99 %"
                rows.append(Row(what, gained.times, paper, "x", 0.15, _note(data, knob, ways, gained)))
    return rows


def _note(data: dict[str, Any], knob: str, ways: str, gained: Gain) -> str:
    panel = data["panels"][knob]
    by_system = (f"{system} {spelled(reached(panel, ways, system))}" for system in panel["curves"][ways])
    return f"{gained}; {', '.join(by_system)}; {FLAT}"


def _recorded(data: dict[str, Any]) -> list[Row]:
    rows = []
    for knob, systems in RECORDED.items():
        panel = data["panels"][knob]
        for system, values in systems.items():
            for value, recorded in values.items():
                ours = panel["curves"]["as published"][system][panel["values"].index(value)]
                what = f"as published, {LABELS[knob]} {value:g}: {system}, beside the authors' record"
                row = Row(what, ours, recorded, "in time", 0.02)
                rows.append(row if row.verdict == "agrees" else replace(row, note=OUR_SEARCH))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    claims = []
    for ways in WAYS:
        claims += [_order(data, ways, GREEDY, ROUND_ROBIN), _order(data, ways, GROUPS, GREEDY)]
        claims.append(_never(data, ways))
    claims.append(_order(data, "fair", EXCHANGES, GROUPS))
    claims.append(_order(data, "fair", OURS, GROUPS))
    return claims


def _order(data: dict[str, Any], ways: str, better: str, worse: str) -> Claim:
    behind, points = behind_of(data["panels"], ways, better, (worse,))
    curves = [panel["curves"][ways] for panel in data["panels"].values()]
    gained = sum(sum(curve[better]) - sum(curve[worse]) for curve in curves) / points
    note = f"{100 * gained:+.1f} points on average, behind at {len(behind)} of {points}"
    return Claim(
        f"{better} is nowhere behind {worse} ({ways})",
        not behind,
        note + (": " if behind else "") + "; ".join(behind),
    )


def _never(data: dict[str, Any], ways: str) -> Claim:
    panel = data["panels"]["rate"]
    most = max(panel["curves"][ways][ROUND_ROBIN])
    return Claim(
        f"round robin never reaches 99 %, whatever the rate ({ways})", most < GOAL, f"{most:.3f} at most"
    )


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(data["panels"]), 5.5)
    for axis, panel in zip(axes, data["panels"].values(), strict=True):
        draw_panel(axis, panel, COLORS, "")
    axes[0].set_ylabel("in time (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=4, fontsize=8)
    save(figure, path, top=0.86)
