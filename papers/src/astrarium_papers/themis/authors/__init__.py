"""Themis and its rivals as the authors' simulator ran them, held against recorded runs of that simulator.

The folder in the environment variable ASTRARIUM_THEMIS_DATA holds their workloads (`online_NAME.csv`, see
`setting`) and `reference.json`, the recorded runs: largest rho by `demand`, mean completion, GPU-hours.
They had 64 GPUs in 2 racks; which machines is not recorded, so ours are those of the paper's testbed. What
is known of their rules is in `rivals`. Not known are the layout, how much work a job is (`setting`), and
how their SRTF and SLAQ are wrong. Causes are switched on and off one at a time.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from astrarium.cluster.policies import cluster_policies
from astrarium.core.quantities import Duration
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis.authors import rivals
from astrarium_papers.themis.authors.rivals import OneByOne
from astrarium_papers.themis.authors.setting import (
    LEASE,
    MakePolicy,
    Outcome,
    SpreadJob,
    drawn,
    more_unequal,
    outcome,
    read,
)

TITLE = "Themis and six rivals in the setting of the authors' simulator (no figure of the paper)"
FOLDER = "ASTRARIUM_THEMIS_DATA"
WORKLOADS = ("comparison", "0network", "100network")
MEASURES = (("worst", "largest rho", "", 0.1), ("completion_min", "mean completion", "min", 0.05),
            ("gpu_hours", "GPU time", "h", 0.05))  # fmt: skip
RECORDED = {"worst": "rho_b_max", "completion_min": "mean_jct_min", "gpu_hours": "gpu_hours"}
UNEQUAL = "how the work is divided between jobs is not known: ours is 0.78 of the serial time for each"
LAYOUT = "their machines are not recorded; on ours GPUs in order of their numbers lie closer together"
FAULT = "how theirs is wrong is known by its name only"


def _registered(name: str, **parameters: Any) -> MakePolicy:
    factory: Any = cluster_policies.get(name)
    return lambda: factory(factory.Parameters(lease=Duration(LEASE), **parameters))


THEIRS: dict[str, MakePolicy] = {
    "Themis": _registered("themis", f=1.0, definition="demand"),
    "Gandiva": lambda: OneByOne(rivals.placement, sees=True),
    "SLAQ": lambda: OneByOne(rivals.loss),
    "Tiresias": lambda: OneByOne(rivals.attained),
    "SJF": lambda: OneByOne(rivals.time_left),
    "SRSF": lambda: OneByOne(rivals.attained),
    "Optimus": lambda: OneByOne(rivals.growth, sees=True),
}
NOTES = {"SJF": FAULT, "SLAQ": FAULT, "Gandiva": LAYOUT, "Tiresias": LAYOUT, "SRSF": LAYOUT}
# What is changed, one at a time: the policy with it, and the one without
SWITCHES: dict[str, tuple[MakePolicy, MakePolicy]] = {
    "Themis bids by demand, not by share": (THEIRS["Themis"], _registered("themis", f=1.0)),
    "Themis: leftovers to the worst, not by chance": (
        _registered("themis", f=1.0, definition="demand", leftovers="worst"), THEIRS["Themis"]),
    "Tiresias is blind to places": (THEIRS["Tiresias"], lambda: OneByOne(rivals.attained, sees=True)),
    "Gandiva: ties to the fewest GPUs, not by arrival": (
        THEIRS["Gandiva"], lambda: OneByOne(rivals.placement, sees=True, early=True)),
    "SRSF ranks by attained service, not by what is left": (
        THEIRS["SRSF"], lambda: OneByOne(rivals.service_left)),
    "SLAQ counts GPUs the wrong way round": (lambda: OneByOne(rivals.loss_by_count), THEIRS["SLAQ"]),
}  # fmt: skip
# `astrarium`, and Themis with one of five apps bidding at a time: so d = 0.2 is read
OURS = {"astrarium": _registered("astrarium"), "Themis-d0.2": _registered("themis", definition="demand")}


POWER = 1.5  # of serial times, where work is more unequal


def run(effort: Effort) -> Findings:
    folder = Path(os.environ.get(FOLDER, ""))
    if not effort.quick and not (os.environ.get(FOLDER) and (folder / "reference.json").is_file()):
        return Findings([], skipped=f"reference.json is not at hand: {FOLDER} names the folder that it is in")
    recorded, workloads = _at_hand(folder, effort)
    rows, data = list[Row](), dict[str, Any]()
    for name, jobs in workloads.items():
        effort.say(name)
        found = {policy: outcome(jobs, make) for policy, make in {**THEIRS, **OURS}.items()}
        rows += [row for policy, one in found.items() for row in _rows(name, policy, one, recorded)]
        rows += _switched(name, jobs)
        data[name] = {policy: _numbers(one) for policy, one in found.items()}
    return Findings(rows, [claim for name, found in data.items() for claim in _claims(name, found)], data)


def _at_hand(folder: Path, effort: Effort) -> tuple[dict[str, Any], dict[str, list[SpreadJob]]]:
    if effort.quick:
        return {}, {"drawn": drawn(1, 24)}
    recorded = json.loads((folder / "reference.json").read_text())
    return recorded, {name: read(folder / f"online_{name}.csv") for name in WORKLOADS}


def _numbers(found: Outcome) -> dict[str, float]:
    return {**{name: getattr(found, name) for name, _, _, _ in MEASURES}, "score": found.score,
            **{definition: max(rhos) for definition, rhos in found.rho.items()}}  # fmt: skip


def _rows(workload: str, policy: str, found: Outcome, recorded: dict[str, Any]) -> list[Row]:
    theirs = recorded.get(f"online_workload_{workload}|64|20|{policy}", {})
    told = f"score {found.score:.3f}" + (f", theirs {theirs['placement_score']:.3f}" if theirs else "")
    told += "; largest rho " + ", ".join(f"{name} {max(rhos):.2f}" for name, rhos in found.rho.items())
    why = f"; {NOTES[policy]}; {UNEQUAL}" if policy in NOTES else f"; {UNEQUAL}"
    return [
        Row(f"{workload}, {policy}: {what}", getattr(found, name), theirs.get(RECORDED[name]), unit, slack,
            told + (why if theirs else ""))
        for name, what, unit, slack in MEASURES
    ]  # fmt: skip


def _switched(workload: str, jobs: list[SpreadJob]) -> list[Row]:
    """Return a row for each cause: the largest rho with it, over that without it."""
    rows = []
    unequal = more_unequal(jobs, POWER)
    pairs = {what: [outcome(jobs, make) for make in makes] for what, makes in SWITCHES.items()}
    for name in ("Themis", "Tiresias", "SJF"):
        both = [outcome(each, THEIRS[name]) for each in (unequal, jobs)]
        pairs[f"work goes by serial time to the power {POWER:g}, {name}"] = both
    for what, (on, off) in pairs.items():
        note = (
            f"{on.worst:.2f} over {off.worst:.2f}; mean completion {on.completion_min:.0f} and "
            f"{off.completion_min:.0f} min, {on.gpu_hours:.0f} and {off.gpu_hours:.0f} GPU-hours"
        )
        rows.append(Row(f"{workload}, switched on: {what}", on.worst / off.worst, unit="x", note=note))
    return rows


def _claims(workload: str, found: dict[str, Any]) -> list[Claim]:
    worst = {policy: found[policy]["worst"] for policy in THEIRS}
    told, least = ", ".join(f"{policy} {value:.2f}" for policy, value in worst.items()), min(worst.values())
    mean = {policy: found[policy]["completion_min"] for policy in (*THEIRS, "astrarium")}
    ours = found["astrarium"]
    return [
        Claim(f"{workload}: the largest rho is smallest under Themis", worst["Themis"] == least, told),
        Claim(f"{workload}: the largest rho of `astrarium` is at most that of Themis",
              ours["worst"] <= worst["Themis"], f"{ours['worst']:.2f} and {worst['Themis']:.2f} (demand)"),
        Claim(f"{workload}: the mean completion of `astrarium` is at most that of the best",
              mean["astrarium"] == min(mean.values()),
              ", ".join(f"{policy} {value:.0f}" for policy, value in mean.items())),
    ]  # fmt: skip


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(MEASURES), 5.0)
    for axis, (name, what, unit, _) in zip(axes, MEASURES, strict=True):
        for place, (workload, found) in enumerate(data.items()):
            at = [number + 0.25 * place for number in range(len(found))]
            axis.bar(at, [each[name] for each in found.values()], 0.25, label=workload)
            axis.set_xticks(at, list(found), rotation=60, fontsize=8)
        axis.set_title(f"{what} ({unit})" if unit else f"{what} (demand)")
    axes[0].legend(fontsize=8)
    save(figure, path)
