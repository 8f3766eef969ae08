"""How long answers take while there is room: mean and median latency over that of eager batching."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from astrarium.serving.ledger import Outcome
from astrarium.serving.level import run as simulate
from astrarium.serving.report.summary import measured_requests
from astrarium.serving.scenario import Scenario
from astrarium_papers.astrarium import heldout
from astrarium_papers.astrarium._settings import ASTRARIUM, COLORS, EAGER, OURS, Setting, built_for, goodputs
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Latency over that of eager batching, at up to half of goodput"
FEW_GPUS = "few-gpus"
POLICIES = {OURS: ASTRARIUM, FEW_GPUS: {**ASTRARIUM, "prefer": FEW_GPUS}, "eager": EAGER}
SHARES = (0.1, 0.25, 0.5)  # of our goodput
BAR = 1.3  # times the mean latency of eager
SECONDS = 12.0  # measured; longer where that is fewer requests than FEWEST
FEWEST = 30_000

Latencies = dict[str, dict[str, float]]  # by policy: mean and median in milliseconds


def settings(effort: Effort) -> list[Setting]:
    return [*built_for(effort), *effort.pick([], heldout.SETTINGS)]


def run(effort: Effort) -> Findings:
    chosen = settings(effort)
    reached = goodputs(chosen, {OURS: ASTRARIUM}, effort, seeds=1, tolerance=0.01)
    work = [(setting, share) for setting in chosen for share in SHARES]

    def measure(pair: tuple[Setting, float]) -> Latencies:
        setting, share = pair
        effort.say(f"{setting.name}: {share:g} of goodput")
        rate = share * reached[setting.name][OURS]["goodput"]
        return {name: _latency(_case(setting, policy, rate, effort)) for name, policy in POLICIES.items()}

    data: dict[str, Any] = {setting.name: {} for setting in chosen}
    for (setting, share), latencies in zip(work, effort.map(measure, work), strict=True):
        data[setting.name][f"{share:g}"] = latencies
    return Findings(list(_rows(data)), [claim(data)], data)


def _case(setting: Setting, policy: dict[str, Any], rate: float, effort: Effort) -> Scenario:
    """Return a setting below capacity; a day keeps its length."""
    seconds = setting.seconds if "changes" in setting.workload else max(SECONDS, FEWEST / rate)
    return msgspec.structs.replace(setting, seconds=seconds).scenario(policy, effort).with_rate(rate)


def _latency(case: Scenario) -> dict[str, float]:
    """Return the latency of the requests that were answered, in time or late."""
    record = simulate(case)
    requests = record.requests
    measured = measured_requests(record)
    answered = measured[np.isin(requests.outcome[measured], (Outcome.IN_TIME, Outcome.LATE))]
    ms = (requests.done[answered] - requests.arrival[answered]) / 1e6
    return {"mean": float(np.mean(ms)), "median": float(np.median(ms))}


def ratio(latencies: Latencies, what: str, policy: str = OURS) -> float:
    return latencies[policy][what] / latencies["eager"][what]


def _rows(data: dict[str, Any]) -> Iterator[Row]:
    for setting, shares in data.items():
        for share, latencies in shares.items():
            yield Row(
                f"{setting}: at {share} of goodput",
                ratio(latencies, "mean"),
                unit="x eager's mean",
                note=f"{latencies[OURS]['mean']:.1f} ms beside {latencies['eager']['mean']:.1f}; the medians "
                f"{ratio(latencies, 'median'):.2f} x; {latencies[FEW_GPUS]['mean']:.1f} ms "
                "with prefer: few-gpus",
            )


def claim(data: dict[str, Any]) -> Claim:
    ratios = {
        f"{setting} at {share}": ratio(latencies, "mean")
        for setting, shares in data.items()
        for share, latencies in shares.items()
    }
    most = max(ratios, key=lambda name: ratios[name])
    return Claim(
        f"mean latency of at most {BAR} times eager's, at up to half of goodput",
        ratios[most] <= BAR,
        f"at most {ratios[most]:.2f} x: {most}",
    )


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(SHARES), 5, 5)
    for axis, share in zip(axes, SHARES, strict=True):
        for place, (policy, color) in enumerate(((OURS, COLORS[OURS]), (FEW_GPUS, "#999999"))):
            at = [group + (place - 0.5) * 0.4 for group in range(len(data))]
            axis.barh(at, _ratios(data, share, policy), 0.38, color=color, label=policy)
        axis.axvline(BAR, color="gray", linestyle="--", linewidth=1)
        axis.set_yticks(range(len(data)), list(data) if share == SHARES[0] else [""] * len(data), fontsize=7)
        axis.invert_yaxis()
        axis.set(xlabel="mean latency over eager's", title=f"{share:g} of goodput")
    axes[0].legend(fontsize=8)
    save(figure, path)


def _ratios(data: dict[str, Any], share: float, policy: str) -> Sequence[float]:
    return [ratio(shares[f"{share:g}"], "mean", policy) for shares in data.values()]
