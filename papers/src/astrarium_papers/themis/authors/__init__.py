"""Themis and its rivals as the authors' simulator ran them, held against recorded runs of that simulator.

The folder in the environment variable ASTRARIUM_THEMIS_DATA holds their workloads (`online_NAME.csv`, see
`setting`) and `reference.json`, the recorded runs: largest rho by `demand`, mean completion, GPU-hours.
Their rules are in `setting` and `rivals`. The layout of the 64 GPUs is not known, so that there are several,
and numbers are medians. Causes are switched on and off one at a time, on the first layout.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.report.summary import DEFINITIONS
from astrarium.core.quantities import Duration
from astrarium.core.random_streams import stream
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis.authors import rivals
from astrarium_papers.themis.authors.rivals import OneByOne, Rank
from astrarium_papers.themis.authors.setting import (
    LEASE,
    LossCurve,
    MakePolicy,
    Outcome,
    SpreadJob,
    drawn,
    outcome,
    outcomes,
    read,
)

TITLE = "Themis and six rivals in the setting of the authors' simulator (no figure of the paper)"
FOLDER = "ASTRARIUM_THEMIS_DATA"
WORKLOADS = ("comparison", "0network", "100network")
MEASURES = (("worst", "largest rho", "", 0.1), ("completion_min", "mean completion", "min", 0.05),
            ("gpu_hours", "GPU time", "h", 0.05))  # fmt: skip
RECORDED = {"worst": "rho_b_max", "completion_min": "mean_jct_min", "gpu_hours": "gpu_hours"}
LAYOUT = "medians over the layouts that theirs may have been: it is not recorded"


def _registered(name: str, **parameters: Any) -> MakePolicy:
    factory: Any = cluster_policies.get(name)
    return lambda jobs: factory(factory.Parameters(lease=Duration(LEASE), **parameters))


def _dealt(rank: Rank, **parameters: Any) -> MakePolicy:
    return lambda jobs: OneByOne(rank, **parameters)


THEIRS: dict[str, MakePolicy] = {
    "Themis": _registered("themis", f=1.0, definition="demand"),
    "Gandiva": _dealt(rivals.throughput),
    "SLAQ": lambda jobs: OneByOne(rivals.loss(jobs)),
    "Tiresias": _dealt(rivals.attained),
    "SJF": _dealt(rivals.time_left),
    "SRSF": _dealt(rivals.work_done),
    "Optimus": _dealt(rivals.growth),
}


def _drawn_apart(jobs: Sequence[SpreadJob]) -> OneByOne:
    """SLAQ with losses of which the factors are drawn independently. Those of theirs are not: with seeds so
    small, the first numbers that Java's generator draws are nearly equal."""
    factors = stream(1, "themis", "losses").random((len(jobs), 2)).tolist()
    pairs = zip(jobs, factors, strict=True)
    return OneByOne(rivals.loss([job._replace(curve=LossCurve(*factor)) for job, factor in pairs]))


# What is changed, one at a time: the policy with it, and the one without
SWITCHES: dict[str, tuple[MakePolicy, MakePolicy]] = {
    "Themis bids by demand, not by share": (THEIRS["Themis"], _registered("themis", f=1.0)),
    "Themis: leftovers to the worst, not by chance": (
        _registered("themis", f=1.0, definition="demand", leftovers="worst"), THEIRS["Themis"]),
    "Tiresias: GPUs are given back with the last iteration in time, not the one after": (
        THEIRS["Tiresias"], _dealt(rivals.attained, ending="after")),
    "Tiresias: GPUs are given back with an iteration, not all together": (
        THEIRS["Tiresias"], _dealt(rivals.attained, ending="together")),
    "Gandiva: GPUs are given back with the last iteration in time, not the one after": (
        THEIRS["Gandiva"], _dealt(rivals.throughput, ending="after")),
    "Gandiva goes by speed, not by closeness": (THEIRS["Gandiva"], _dealt(rivals.closeness)),
    "Gandiva: ties to the fewest GPUs, not by arrival": (
        THEIRS["Gandiva"], _dealt(rivals.throughput, early=True)),
    "SRSF ranks by what is done, not by what is left": (THEIRS["SRSF"], _dealt(rivals.service_left)),
    "SRSF counts whole iterations, not parts": (THEIRS["SRSF"], _dealt(rivals.work_done_in_parts)),
    "SJF: the worse the place, the shorter, not the longer": (THEIRS["SJF"], _dealt(rivals.time_left_right)),
    "SLAQ: the more GPUs, the fewer iterations, not the more": (
        THEIRS["SLAQ"], lambda jobs: OneByOne(rivals.loss(jobs, right=True))),
    "SLAQ: losses by their seeds, not drawn independently": (THEIRS["SLAQ"], _drawn_apart),
}  # fmt: skip
# `astrarium`, and Themis with one of five apps bidding at a time: so d = 0.2 is read
OURS = {
    "astrarium": _registered("astrarium", definition="demand"),
    "Themis-d0.2": _registered("themis", definition="demand"),
}


def run(effort: Effort) -> Findings:
    folder = Path(os.environ.get(FOLDER, ""))
    if not effort.quick and not (os.environ.get(FOLDER) and (folder / "reference.json").is_file()):
        return Findings([], skipped=f"reference.json is not at hand: {FOLDER} names the folder that it is in")
    recorded, workloads = _at_hand(folder, effort)
    whole = {} if effort.quick else {name: read(_file(folder, name), halve=False) for name in workloads}
    rows = list[Row]()
    data = dict[str, Any]()
    for name, jobs in workloads.items():
        effort.say(name)
        by_policy = {policy: outcomes(jobs, make) for policy, make in {**THEIRS, **OURS}.items()}
        rows += [
            row for policy, layouts in by_policy.items() for row in _rows(name, policy, layouts, recorded)
        ]
        rows += _switched(name, jobs, whole.get(name))
        data[name] = {policy: _numbers(layouts) for policy, layouts in by_policy.items()}
    return Findings(
        rows, [claim for name, by_policy in data.items() for claim in _claims(name, by_policy)], data
    )


def _at_hand(folder: Path, effort: Effort) -> tuple[dict[str, Any], dict[str, list[SpreadJob]]]:
    if effort.quick:
        return {}, {"drawn": drawn(1, 24)}
    recorded = json.loads((folder / "reference.json").read_text())
    return recorded, {name: read(_file(folder, name)) for name in WORKLOADS}


def _file(folder: Path, workload: str) -> Path:
    return folder / f"online_{workload}.csv"


def _numbers(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the medians over layouts."""
    numbers = {name: median(getattr(outcome, name) for outcome in outcomes) for name in (*RECORDED, "score")}
    return numbers | {
        definition: median(max(outcome.rho[definition]) for outcome in outcomes) for definition in DEFINITIONS
    }


def _rows(workload: str, policy: str, outcomes: Sequence[Outcome], recorded: dict[str, Any]) -> list[Row]:
    theirs = recorded.get(f"online_workload_{workload}|64|20|{policy}", {})
    numbers = _numbers(outcomes)
    scores = f"score {numbers['score']:.3f}" + (f", theirs {theirs['placement_score']:.3f}" if theirs else "")
    scores += "; largest rho " + ", ".join(f"{name} {numbers[name]:.2f}" for name in DEFINITIONS)
    return [
        Row(f"{workload}, {policy}: {what}", numbers[name], theirs.get(RECORDED[name]), unit, slack,
            f"{_range(outcomes, name)}; {scores}" + (f"; {LAYOUT}" if theirs else ""))
        for name, what, unit, slack in MEASURES
    ]  # fmt: skip


def _range(outcomes: Sequence[Outcome], name: str) -> str:
    values = [getattr(outcome, name) for outcome in outcomes]
    return f"{min(values):,.4g} to {max(values):,.4g}"


def _switched(workload: str, jobs: list[SpreadJob], whole: list[SpreadJob] | None) -> list[Row]:
    """Return a row for each cause: the largest rho with it, over that without it. *whole*: jobs that are not
    halved."""
    rows = []
    pairs = {what: [outcome(jobs, make) for make in makes] for what, makes in SWITCHES.items()}
    for name in ("Themis", "Tiresias", "SJF") if whole else ():
        both = [outcome(workload_jobs, THEIRS[name]) for workload_jobs in (jobs, whole or jobs)]
        pairs[f"groups are halved, {name}"] = both
    for what, (on, off) in pairs.items():
        note = (
            f"{on.worst:.2f} over {off.worst:.2f}; mean completion {on.completion_min:.0f} and "
            f"{off.completion_min:.0f} min, {on.gpu_hours:.0f} and {off.gpu_hours:.0f} GPU-hours"
        )
        rows.append(Row(f"{workload}, switched on: {what}", on.worst / off.worst, unit="x", note=note))
    return rows


def _claims(workload: str, numbers: dict[str, Any]) -> list[Claim]:
    worst = {policy: numbers[policy]["worst"] for policy in THEIRS}
    note = ", ".join(f"{policy} {value:.2f}" for policy, value in worst.items())
    least = min(worst.values())
    mean = {policy: numbers[policy]["completion_min"] for policy in (*THEIRS, "astrarium")}
    ours = numbers["astrarium"]
    return [
        Claim(f"{workload}: the largest rho is smallest under Themis", worst["Themis"] == least, note),
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
        for place, (workload, numbers) in enumerate(data.items()):
            at = [number + 0.25 * place for number in range(len(numbers))]
            axis.bar(at, [of_policy[name] for of_policy in numbers.values()], 0.25, label=workload)
            axis.set_xticks(at, list(numbers), rotation=60, fontsize=8)
        axis.set_title(f"{what} ({unit})" if unit else f"{what} (demand)")
    axes[0].legend(fontsize=8)
    save(figure, path)
