"""Table 5: a long and a short app under Themis and under Tiresias, on the testbed.

Which apps of the run they were is not printed. Six pairs of them, as long and as wide as printed, come at
regular instants while workload 2 arrives. Each is one job that can use that many GPUs, or fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from astrarium.cluster.contract import Job
from astrarium.cluster.report.summary import DEFINITIONS, summarize_apps
from astrarium.cluster.workloads.apps import DrawnApp
from astrarium.core.quantities import SECOND
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis._runs import CLUSTERS, COLORS, THEMIS, Task, bids, gpus, over, record_of
from astrarium_papers.themis._workloads import Drawing, drawn

TITLE = "A long and a short app under Themis and Tiresias (Table 5)"
PAIRS = 6
MINUTE = 60 * SECOND


class Kind(msgspec.Struct, frozen=True):
    gpu_minutes: int
    gpus: int
    model: str = "Inception-v3"  # which does not mind where it runs


KINDS = {"long": Kind(580, 4), "short": Kind(83, 2)}
PAPER = {("long", THEMIS): 1.0, ("long", "Tiresias"): 0.9, ("short", THEMIS): 1.2, ("short", "Tiresias"): 1.9}
SYSTEMS = {THEMIS: "themis", "Tiresias": "tiresias"}
WHICH = "both are apps of a run that is not public; with another crowd rho is another"
NOT_BY_EQUATION_1 = (
    "where N counts apps, a job that can use 2 or 4 of 64 GPUs cannot come near 1: these are not by that; "
    "in the authors' code N is the GPUs wanted over those there, which is `demand`"
)


def run(effort: Effort) -> Findings:
    data: dict[str, Any] = {
        definition: {kind: {name: [] for name in SYSTEMS} for kind in KINDS} for definition in DEFINITIONS
    }
    for seed in range(1, 1 + effort.pick(1, 3)):
        drawing = Drawing(workload=2, seed=seed, apps=effort.pick(8, 85))
        for name, policy in SYSTEMS.items():
            for definition in DEFINITIONS:
                effort.say(f"{name}, seed {seed}, {definition}")
                rhos = _rhos(Task(drawing, policy, bids(name, definition)), definition)
                for kind in KINDS:
                    data[definition][kind][name] += rhos[kind]
    return Findings(_rows(data), _claims(data), data)


def _rhos(task: Task, definition: str) -> dict[str, list[float]]:
    apps = with_pairs(drawn(task.drawing, gpus(CLUSTERS[task.cluster])))
    apps_summary = summarize_apps(record_of(task, apps))
    return {
        kind: [app.rho[definition] for app in apps_summary if app.name.startswith(kind)] for kind in KINDS
    }


def with_pairs(apps: Sequence[DrawnApp]) -> tuple[DrawnApp, ...]:
    last = apps[-1].arrival
    ours = [
        _single(kind, number, round(last * (number + 0.5) / PAIRS))
        for kind in KINDS
        for number in range(PAIRS)
    ]
    return tuple(sorted([*apps, *ours], key=lambda app: app.arrival))


def _single(kind: str, number: int, arrival: int) -> DrawnApp:
    facts = KINDS[kind]
    job = Job(0, facts.gpu_minutes * MINUTE, 1, facts.gpus, facts.model, iterations=1)
    return DrawnApp(0, f"{kind} {number}", ((job,),), arrival=arrival)


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for definition, kinds in data.items():
        for kind, systems in kinds.items():
            for name, rhos in systems.items():
                spread = over(rhos)
                near = definition != "equation-1"
                paper, why = (PAPER[kind, name], WHICH) if near else (None, NOT_BY_EQUATION_1)
                note = f"{spread.least:.2f} to {spread.most:.2f} over {spread.seeds} such apps; {why}"
                what = f"{definition}: rho of the {kind} app, {name}"
                rows.append(Row(what, spread.median, paper, tolerance=0.2, note=note))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    claims = []
    for definition, kinds in data.items():
        medians = {
            kind: {name: over(rhos).median for name, rhos in systems.items()}
            for kind, systems in kinds.items()
        }
        short = medians["short"]
        long = medians["long"]
        apart = {name: max(short[name], long[name]) for name in SYSTEMS}
        note = ", ".join(f"{name}: short {short[name]:.2f}, long {long[name]:.2f}" for name in SYSTEMS)
        claims += [
            Claim(
                f"{definition}: short apps fare better with Themis", short[THEMIS] < short["Tiresias"], note
            ),
            Claim(
                f"{definition}: the worse of both fares better with Themis",
                apart[THEMIS] < apart["Tiresias"],
                note,
            ),
        ]
    return claims


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(data), 4.5)
    for axis, (definition, kinds) in zip(axes, data.items(), strict=True):
        for place, name in enumerate(SYSTEMS):
            for number, kind in enumerate(KINDS):
                at = number + 0.3 * (place - 0.5)
                axis.plot(
                    [at] * len(kinds[kind][name]), kinds[kind][name], "o", color=COLORS[name], alpha=0.5
                )
                axis.plot([at], [PAPER[kind, name]], "kx")
        axis.set_xticks(range(len(KINDS)), list(KINDS))
        axis.set(ylabel=f"rho ({definition})", title="blue: Themis; green: Tiresias; x: paper")
    save(figure, path)
