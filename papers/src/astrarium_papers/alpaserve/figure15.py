"""Figure 15: what batches bring (section 6.5).

As the authors' public script has it: 16 BERT-1.3B on 8 GPUs, 64 requests/s that fall with a power law, a CV
of 4. (The paper's text has S1, which are 32, and 4 requests/s for each.) Without batches 8 GPUs do 53
requests/s at most, so that many come late however loose the objective is. What a batch takes at their
sequence length was never published. So it is assumed, twice: every further request adds three quarters of the
first (others measured 12.5 times for 16 requests with these models), or all of it. The paper's right half has
Clockwork++; plans that change do not batch here, so replication stands in its place, which the paper left out
as the weaker.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.policies import PlacementPolicy, Search, placement_policies
from astrarium_papers.alpaserve._common.cases import FAIR, Case, judge, problem
from astrarium_papers.alpaserve._common.panels import ALPASERVE, NOISE, REPLICATION
from astrarium_papers.alpaserve._common.sweeps import HISTORY
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "What batches bring: 16 BERT-1.3B on 8 GPUs (Figure 15)"
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    ALPASERVE: ("alpaserve", {"refine": 0}),
    REPLICATION: ("selective-replication", {}),
}
GROWTHS = {"three quarters": 0.75, "all": 1.0}  # of the first request's time, for each further one
SCALES = (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 14)
BATCHES = (1, 2, 4, 8, 16)
ASSUMED = "how long a batch takes is assumed"
TIGHT = 2  # "say SLO Scale is less than 2"


def run(effort: Effort) -> Findings:
    scales = effort.pick((1.5, 12), SCALES)
    batches = {ALPASERVE: effort.pick((1, 2, 4), BATCHES), REPLICATION: (1, 2)}
    work = [
        (system, growth, batch, scale)
        for system in POLICIES
        for growth in GROWTHS
        for batch in batches[system]
        for scale in scales
    ]
    attained = dict(zip(work, effort.map(lambda case: _attained(*case, effort), work), strict=True))
    data = {
        "scales": list(scales),
        "curves": {
            growth: {
                curve(system, batch): [attained[system, growth, batch, scale] for scale in scales]
                for system in POLICIES
                for batch in batches[system]
            }
            for growth in GROWTHS
        },
    }
    return Findings(_rows(data), _claims(data), data)


def curve(system: str, batch: int) -> str:
    return f"{system}, batches up to {batch}"


def _attained(system: str, growth: str, batch: int, scale: float, effort: Effort) -> float:
    effort.say(f"{system}, batches of {batch}, SLO {scale:g}x, {growth}")
    case = _case(growth, batch, scale, effort.pick(30.0, 200.0))
    ways = msgspec.structs.replace(FAIR, runtime=GroupRuntime(dispatch="queue", max_batch=batch))
    past = msgspec.structs.replace(case, seconds=case.seconds * HISTORY)
    plan = _policy(system, ways.runtime).place(problem(past, ways), Search())
    return fmean(judge(case, plan, ways, seed).attainment for seed in range(effort.pick(1, 3)))


def _case(growth: str, batch: int, scale: float, seconds: float) -> Case:
    models = ("bert-1.3b",) * 16
    batches: dict[str, Any] = {"largest_batch": batch, "batch_growth": GROWTHS[growth]}
    return Case(models, 8, 64.0, slo=float(scale), seconds=seconds, **batches)


def _policy(system: str, runtime: GroupRuntime) -> PlacementPolicy:
    """Return a policy that is told how groups will serve."""
    name, parameters = POLICIES[system]
    factory: Any = placement_policies.get(name)
    policy: PlacementPolicy = factory(factory.Parameters(**parameters, runtime=runtime))
    return policy


def _rows(data: dict[str, Any]) -> list[Row]:
    last = data["scales"][-1]
    return [
        Row(f"{name}, a further request takes {growth}: SLO {last:g}x", shares[-1], unit="in time")
        for growth, curves in data["curves"].items()
        for name, shares in curves.items()
    ]


def _claims(data: dict[str, Any]) -> list[Claim]:
    claims = []
    for growth in data["curves"]:
        claims += [_tight(data, growth), _two_do(data, growth), _loose(data, growth)]
    return claims


def _changes(data: dict[str, Any], growth: str, few: int) -> dict[float, float]:
    """Return, by scale, what the best of AlpaServe's larger batches adds to batches of *few*."""
    curves = data["curves"][growth]
    larger = [curves[curve(ALPASERVE, n)] for n in BATCHES if n > few and curve(ALPASERVE, n) in curves]
    return {
        scale: max(curve_of_one[place] for curve_of_one in larger) - curves[curve(ALPASERVE, few)][place]
        for place, scale in enumerate(data["scales"])
    }


def _tight(data: dict[str, Any], growth: str) -> Claim:
    gains = {scale: change for scale, change in _changes(data, growth, 1).items() if scale < TIGHT}
    note = ", ".join(f"{scale:g}x {100 * change:+.1f} points" for scale, change in gains.items())
    return Claim(
        f"no gain where the objective is tight (a further request takes {growth})",
        all(change <= NOISE for change in gains.values()),
        f"{note}; with operators divided, two may be in time where one GPU takes too long; {ASSUMED}",
    )


def _two_do(data: dict[str, Any], growth: str) -> Claim:
    gains = _changes(data, growth, 2)
    most = max(gains, key=lambda scale: gains[scale])
    return Claim(
        f"batches of more than 2 bring nothing more (a further request takes {growth})",
        gains[most] <= 2 * NOISE,
        f"at most {100 * gains[most]:+.1f} points, at {most:g}x; {ASSUMED}",
    )


def _loose(data: dict[str, Any], growth: str) -> Claim:
    """Batches of two at the loosest objective, as the paper's right half has them for Clockwork++."""
    curves = data["curves"][growth]
    last = data["scales"][-1]
    ours, theirs = (
        curves[curve(system, 2)][-1] - curves[curve(system, 1)][-1] for system in (ALPASERVE, REPLICATION)
    )
    return Claim(
        f"where it is loose, batches help both, replication more (a further request takes {growth})",
        0 < ours <= theirs,
        f"{last:g}x: AlpaServe {100 * ours:+.1f} points, replication {100 * theirs:+.1f}; {ASSUMED}",
    )


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(data["curves"]), 5.5, 4.0)
    for axis, (growth, curves) in zip(axes, data["curves"].items(), strict=True):
        for name, shares in curves.items():
            style = "-" if name.startswith(ALPASERVE) else "--"
            percent = [100 * share for share in shares]
            axis.plot(data["scales"], percent, ls=style, marker="o", markersize=3, label=name)
        axis.set(xlabel="SLO scale", title=f"a further request takes {growth} of the first", ylim=(0, 101))
    axes[0].set_ylabel("in time (%)")
    axes[0].legend(fontsize=8)
    save(figure, path)
