"""Figure 18: one of eight identical apps lies, on one machine of 8 GPUs and 28 of 2.

What the apps are is not printed. Ours train VGG16 and want more than the cluster has together: `wide` is one
job on up to 16 GPUs, `sweep` four jobs on up to 8. Every second one is the liar once; numbers are means over
them. It overstates, by X %, what being apart costs; or understates what being on one machine does.

These two kinds are what was kept of several that were tried; with others a lie changes less or nothing. The
point from which on a lie hurts is one of `LIES`, so that it is known no better than they are apart.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from astrarium.cluster import level
from astrarium.cluster.report.summary import summarize_apps
from astrarium.cluster.scenario.read import parse
from astrarium.run.pools import processes
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Completion times of a liar and of the others, 64 GPUs (Figure 18)"
LIES = (0, 10, 20, 30, 34, 40, 60, 80, 100)
APPS = 8
KINDS: dict[str, dict[str, Any]] = {
    "wide": {"jobs": 1, "most": 16, "length": "20h"},
    "sweep": {"jobs": 4, "most": 8, "length": "5h"},
}
WAYS = {"overstates": False, "understates": True}
TIPPING = 34.0
HAIR = 1.01  # a gain or loss of less is chance
SEARCHED = "our bids are the best patterns that we find for each number of GPUs, not all subsets"


class Lie(NamedTuple):
    kind: str
    way: str
    per_cent: int
    liar: int


def run(effort: Effort) -> Findings:
    lies, liars = effort.pick(((0, 100), (3,)), (LIES, range(0, APPS, 2)))
    tasks = [Lie(kind, way, x, liar) for kind in KINDS for way in WAYS for x in lies for liar in liars]
    if effort.jobs > 1:
        with processes(effort.jobs) as pool:
            completions = list(pool.map(completion, tasks, chunksize=8))
    else:
        completions = list(map(completion, tasks))
    took = dict(zip(tasks, completions, strict=True))
    data: dict[str, Any] = {"lies": list(lies)}
    for kind in KINDS:
        for way in WAYS:
            pairs = [[took[Lie(kind, way, x, liar)] for liar in liars] for x in lies]
            data[f"{kind}, {way}"] = {
                "liar": [fmean(mine for mine, _ in hours) for hours in pairs],
                "others": [fmean(others for _, others in hours) for hours in pairs],
            }
    return Findings(_rows(data), _claims(data), data)


def completion(lie: Lie) -> tuple[float, float]:
    """Return the hours that the liar takes, and the mean of the others."""
    lies = {lie.liar: lie.per_cent / 100} if lie.per_cent else {}
    policy = {"name": "themis", "lies": lies, "lie_near": WAYS[lie.way]}
    scenario = parse(
        {
            "machines": "themis-truth-telling",
            "apps": [{"name": "app", "count": APPS, "model": "VGG16", **KINDS[lie.kind]}],
            "slowdowns": {"table": "themis"},
            "policy": policy,
        }
    )
    took = [(app.took_s or 0.0) / 3600 for app in summarize_apps(level.run(scenario))]
    return took[lie.liar], fmean(hours for number, hours in enumerate(took) if number != lie.liar)


def tipping(lies: list[int], liar: list[float]) -> float | None:
    """Return the largest X up to which the liar takes no longer than without a lie; none if lying never
    hurts."""
    for place in range(len(lies) - 1, -1, -1):
        if liar[place] <= liar[0] * HAIR:
            return float(lies[place]) if place + 1 < len(lies) else None
    return None


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for name in _cases(data):
        liar = data[name]["liar"]
        others = data[name]["others"]
        lies = data["lies"]
        best = min(liar) / liar[0]
        worst = max(liar) / liar[0]
        point = tipping(lies, liar)
        note = f"at best {100 * (best - 1):+.1f} %, at worst {100 * (worst - 1):+.1f} %; {SEARCHED}"
        if point is not None:
            rows.append(Row(f"{name}: from which X on a lie only hurts", point, TIPPING, "%", 0.3, note))
        rows.append(
            Row(f"{name}: the liar's time at 100 %, over none", liar[-1] / liar[0], unit="x", note=note)
        )
        rows.append(Row(f"{name}: the others' time at 100 %, over none", others[-1] / others[0], unit="x"))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    claims = []
    for name in _cases(data):
        liar = data[name]["liar"]
        others = data[name]["others"]
        lies = data["lies"]
        gain = {x: 1 - hours / liar[0] for x, hours in zip(lies, liar, strict=True)}
        best = max(gain, key=lambda x: gain[x])
        helped = {x: 1 - hours / others[0] for x, hours in zip(lies, others, strict=True)}
        most = max(helped, key=lambda x: helped[x])
        claims += [
            Claim(
                f"{name}: no lie pays by more than 1 %",
                gain[best] <= HAIR - 1,
                f"most: {100 * gain[best]:.1f} % at {best} %",
            ),
            Claim(
                f"{name}: the truthful do no worse for it",
                min(helped.values()) >= 1 - HAIR,
                f"most gained: {100 * helped[most]:.1f} % at {most} %",
            ),
            Claim(
                f"{name}: a large lie costs the liar",
                liar[-1] > liar[0] * HAIR,
                f"{100 * (liar[-1] / liar[0] - 1):+.1f} % at {lies[-1]} %",
            ),
        ]
    return claims


def _cases(data: dict[str, Any]) -> list[str]:
    return [name for name in data if name != "lies"]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(_cases(data)), 3.8)
    for axis, name in zip(axes, _cases(data), strict=True):
        axis.plot(data["lies"], data[name]["liar"], "o-", color="#D55E00", label="the liar")
        axis.plot(data["lies"], data[name]["others"], "s-", color="#0072B2", label="the others, mean")
        axis.axvline(TIPPING, color="black", linewidth=1, linestyle=":")
        axis.set(title=name, xlabel="X (%)", ylabel="completion time (h)")
    axes[0].legend(fontsize=8)
    save(figure, path)
