"""Figures 9 and 10: rho of all apps under Themis and six rivals, on the testbed."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace

from astrarium.cluster.report.summary import DEFINITIONS
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis._runs import COLORS, RIVALS, THEMIS, Measured, Over, Task, jain, measured, over
from astrarium_papers.themis._workloads import Drawing

PAPER = (2.2, 3.25)  # section 6.2: how much smaller Themis's largest rho is
EVEN = 1.05  # up to here sharing is as good as being alone
LOWER = "the rival gives newcomers GPUs at the next lease too, so that few apps fare badly with it"
HIGHER = "the rival makes some apps wait until others have ended"


def tasks(drawing: Drawing) -> dict[tuple[str, str], Task]:
    """Return tasks by system and definition: Themis bids by the one that it is measured by; rivals know
    neither."""
    by_name: dict[tuple[str, str], Task] = {}
    for definition in DEFINITIONS:
        by_name[THEMIS, definition] = Task(drawing, "themis", (("definition", definition),))
        by_name |= {(name, definition): Task(drawing, policy) for name, policy in RIVALS.items()}
    return by_name


def findings(workload: int, effort: Effort) -> Findings:
    base = Drawing(workload=workload, apps=effort.pick(10, 85))
    drawings = [replace(base, seed=seed) for seed in range(1, 1 + effort.pick(1, 3))]
    plain = effort.pick([], [replace(base, as_drawn=True)])
    measured_cases = [tasks(drawing) for drawing in drawings]
    besides = [tasks(drawing) for drawing in plain]
    runs = measured([task for by_case in (*measured_cases, *besides) for task in by_case.values()], effort)
    data = {
        "rho": {
            name: {
                definition: [runs[by_case[name, definition]].rho[definition] for by_case in measured_cases]
                for definition in DEFINITIONS
            }
            for name in (THEMIS, *RIVALS)
        },
        "as drawn": {
            definition: {
                name: runs[by_case[name, definition]].worst(definition) for name in (THEMIS, *RIVALS)
            }
            for by_case in besides
            for definition in DEFINITIONS
        },
    }
    facts = [runs[by_case[THEMIS, "share"]] for by_case in measured_cases]
    return Findings([*_rows(data), *_facts(facts)], _claims(data), data)


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for definition in DEFINITIONS:
        rows += [_ratio(data, name, definition) for name in RIVALS]
        rows += [_own(data, definition), *_distribution(data, definition)]
    return rows + [_as_drawn(definition, numbers) for definition, numbers in data["as drawn"].items()]


def worsts(data: dict[str, Any], name: str, definition: str) -> list[float]:
    return [max(rhos) for rhos in data["rho"][name][definition]]


def ratios(data: dict[str, Any], name: str, definition: str) -> Over:
    """Return the rival's largest rho over Themis's, seed by seed."""
    pairs = zip(worsts(data, name, definition), worsts(data, THEMIS, definition), strict=True)
    return over(theirs / ours for theirs, ours in pairs)


def _ratio(data: dict[str, Any], name: str, definition: str) -> Row:
    ratio = ratios(data, name, definition)
    worst = over(worsts(data, name, definition))
    what = f"{definition}: {name}'s largest rho over Themis's"
    row = Row(what, ratio.median, PAPER, "x", 0.1, f"{ratio}; its own {worst.median:.2f} ({worst})")
    why = {"lower": LOWER, "higher": HIGHER}.get(row.verdict)
    return row if why is None else replace(row, note=f"{row.note}; {why}")


def _own(data: dict[str, Any], definition: str) -> Row:
    spread = over(worsts(data, THEMIS, definition))
    return Row(
        f"{definition}: Themis's largest rho", spread.median, note=f"{spread}; the paper draws it only"
    )


def _distribution(data: dict[str, Any], definition: str) -> list[Row]:
    rhos = data["rho"][THEMIS][definition]
    fine = over(100 * sum(rho <= EVEN for rho in of_seed) / len(of_seed) for of_seed in rhos)
    rows = [
        Row(
            f"{definition}: apps with a rho of at most {EVEN} under Themis",
            fine.median,
            unit="%",
            note=f"{fine}",
        )
    ]
    for name in (THEMIS, *RIVALS):
        even = over(jain(of_seed) for of_seed in data["rho"][name][definition])
        rows.append(Row(f"{definition}: Jain's index of rho, {name}", even.median, note=f"{even}"))
    return rows


def _as_drawn(definition: str, numbers: dict[str, float]) -> Row:
    """Return the row of the workload with lengths and arrivals as in section 2.2."""
    shown = ", ".join(f"{name} {worst:.1f}" for name, worst in numbers.items())
    times = median(numbers[name] for name in RIVALS) / numbers[THEMIS]
    note = f"lengths and arrivals as in section 2.2, one seed; largest rho: {shown}"
    return Row(
        f"{definition}, as drawn: the median rival's largest rho over Themis's", times, unit="x", note=note
    )


def _facts(runs: list[Measured]) -> list[Row]:
    took = over(median(run.took_s) / 3600 for run in runs)
    crowd = over(run.contention for run in runs)
    note = f"{took}; 35 s are 0.2 % of it (section 6.2.3); arrivals were chosen for it"
    return [
        Row(
            "how long the median app takes under Themis",
            took.median,
            35 / 0.002 / 3600,
            "h",
            0.3,
            note,
            given=True,
        ),
        Row("apps at a time, as apps see it under Themis", crowd.median, note=f"{crowd}"),
    ]


def _claims(data: dict[str, Any]) -> list[Claim]:
    return [
        claim
        for definition in DEFINITIONS
        for claim in (_smallest(data, definition), _narrow(data, definition))
    ]


def _smallest(data: dict[str, Any], definition: str) -> Claim:
    medians = {name: over(worsts(data, name, definition)).median for name in (THEMIS, *RIVALS)}
    shown = ", ".join(f"{name} {worst:.2f}" for name, worst in medians.items())
    return Claim(
        f"{definition}: Themis's largest rho is the smallest", medians[THEMIS] == min(medians.values()), shown
    )


def _narrow(data: dict[str, Any], definition: str) -> Claim:
    medians = {
        name: over(jain(of_seed) for of_seed in data["rho"][name][definition]).median
        for name in (THEMIS, *RIVALS)
    }
    shown = "Jain's index: " + ", ".join(f"{name} {index:.2f}" for name, index in medians.items())
    return Claim(
        f"{definition}: Themis's rho vary least from app to app",
        medians[THEMIS] == max(medians.values()),
        shown,
    )


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(DEFINITIONS), 5.5)
    for axis, definition in zip(axes, DEFINITIONS, strict=True):
        for name, by_definition in data["rho"].items():
            ordered = sorted(rho for of_seed in by_definition[definition] for rho in of_seed)
            shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
            axis.step(ordered, shares, where="post", color=COLORS[name], label=name)
        axis.set(xlabel=f"rho ({definition})", xscale="log", ylabel="share of apps")
    axes[0].legend(fontsize=8)
    save(figure, path)
