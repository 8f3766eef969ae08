"""What is read off a panel of curves: where 99 % is met, how far apart that is, who is behind where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ALPASERVE = "AlpaServe"
CLOCKWORK = "Clockwork++"
REPLICATION = "SR"
OURS = "Planner"
COLORS = {ALPASERVE: "#0072B2", CLOCKWORK: "#D55E00", REPLICATION: "#009E73", OURS: "#000000"}
GOAL = 0.99
NOISE = 0.005  # what a few hundred seconds of bursts cannot tell apart
LABELS = {"gpus": "GPUs", "rate": "requests/s", "cv": "CV", "slo": "SLO scale"}
MORE_HELPS = {"gpus": True, "rate": False, "cv": False, "slo": True}


def reach(values: Sequence[float], attained: Sequence[float], more_helps: bool) -> float | None:
    """Return the hardest value that meets 99 %, on a line to the next harder one, which does not. None: no
    value does."""
    hardest_first = sorted(zip(values, attained, strict=True), reverse=not more_helps)
    before: tuple[float, float] | None = None
    for value, share in hardest_first:
        if share >= GOAL:
            if before is None:
                return value
            harder, short = before
            return harder + (value - harder) * (GOAL - short) / (share - short)
        before = (value, share)
    return None


class Gain(NamedTuple):
    """How many times less a system does with. *bound*: the rival met 99 % nowhere, so that the true number is
    larger."""

    times: float
    bound: bool

    def __str__(self) -> str:
        return f"{'over ' * self.bound}{self.times:.2f}x"


def gain(panel: Mapping[str, Any], ways: str, system: str, rival: str) -> Gain | None:
    """Return how many times fewer GPUs, higher rate, burstier traffic, or tighter objective *system* does
    with. None: it meets 99 % nowhere itself."""
    ours, theirs = (reached(panel, ways, name) for name in (system, rival))
    if ours is None:
        return None
    helps = MORE_HELPS[panel["knob"]]
    easiest = max(panel["values"]) if helps else min(panel["values"])
    theirs, bound = (easiest, True) if theirs is None else (theirs, False)
    return Gain(theirs / ours if helps else ours / theirs, bound)


def reached(panel: Mapping[str, Any], ways: str, system: str) -> float | None:
    return reach(panel["values"], panel["curves"][ways][system], MORE_HELPS[panel["knob"]])


def behind_of(
    panels: Mapping[str, Any], ways: str, system: str, rivals: Sequence[str]
) -> tuple[list[str], int]:
    """Return where *system* is behind the best of its rivals, in words, and how many points there are."""
    behind = []
    points = 0
    for name, panel in panels.items():
        curves = panel["curves"][ways]
        best = [max(shares) for shares in zip(*(curves[rival] for rival in rivals), strict=True)]
        for value, ours, theirs in zip(panel["values"], curves[system], best, strict=True):
            points += 1
            if ours < theirs - NOISE:
                behind.append(f"{name} {value:g}: {ours:.3f} to {theirs:.3f}")
    return behind, points


def spelled(value: float | None) -> str:
    return "nowhere" if value is None else f"{value:.3g}"


def draw_panel(axis: Any, panel: Mapping[str, Any], colors: Mapping[str, str], title: str) -> None:
    """Draw a panel: fair curves are solid, those as published dotted; ours is dashed, for it may hide
    another. 99 % is a line."""
    for ways, curves in panel["curves"].items():
        for system, attained in curves.items():
            style: dict[str, Any] = {"color": colors[system], "marker": "o", "markersize": 3}
            style["ls"] = ":" if ways != "fair" else "--" if system == OURS else "-"
            style["label"] = f"{system}, {ways}" if ways != "fair" else system
            axis.plot(panel["values"], [100 * share for share in attained], **style)
    axis.axhline(100 * GOAL, color="#999999", lw=0.8)
    axis.set(xlabel=LABELS[panel["knob"]], title=title)
