"""Figure 3.12: 9 trials on 8 GPUs, with iteration times that differ little, more and much among them.

How much is not printed. Ours are log-normal, with the standard deviations of the logarithm below; what a
configuration does to the time of an iteration is switched off, so that nothing else differs. All iterations
of one trial take the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from astrarium.tuning.scenario.tasks import Task
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.fluid._grids import grid_speedup
from astrarium_papers.fluid._runs import CIFAR, NO_NUMBER, SHORT, WLM, seeds

TITLE = "Speed-up by the variance of trials' runtimes, 9 trials on 8 GPUs (Figure 3.12)"
TRIALS = 9
VARIANCES = {"small": 0.1, "medium": 0.4, "large": 0.8}


def run(effort: Effort) -> Findings:
    data = {
        SHORT[task.name]: {
            name: tuple(grid_speedup(_varied(task, spread), TRIALS, seeds(effort, 20)))
            for name, spread in VARIANCES.items()
        }
        for task in (CIFAR, WLM)
    }
    rows = [
        Row(f"{task}, {name} variance: speed-up", gained[0], None, "x", note=_note(name, gained))
        for task, gains in data.items()
        for name, gained in gains.items()
    ]
    return Findings(rows, _claims(data), data)


def _varied(task: Task, spread: float) -> Task:
    even = {name: msgspec.structs.replace(knob, slower=1.0) for name, knob in task.knobs.items()}
    return msgspec.structs.replace(task, knobs=even, spread=spread)


def _note(name: str, gained: tuple[float, ...]) -> str:
    return (
        f"log-normal, {VARIANCES[name]:g}; {gained[2]:.2f} to {gained[3]:.2f} over the seeds; "
        f"the figure's axis ends at 3; {NO_NUMBER}"
    )


def _claims(data: dict[str, Any]) -> list[Claim]:
    means = {task: [gained[0] for gained in gains.values()] for task, gains in data.items()}
    note = "; ".join(
        f"{task} " + ", ".join(f"{mean:.2f}x" for mean in gains) for task, gains in means.items()
    )
    return [
        Claim("Fluid is faster whatever the variance", min(map(min, means.values())) > 1, note),
        Claim(
            "it gains most where the variance is large",
            all(gains[-1] == max(gains) for gains in means.values()),
            f"{note}. Where they are alike, the ninth has to wait for all others without Fluid",
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1)
    for place, (task, gains) in enumerate(data.items()):
        at = [number + 0.4 * (place - 0.5) for number in range(len(gains))]
        means, deviations = ([gained[part] for gained in gains.values()] for part in (0, 1))
        axis.bar(at, means, 0.38, yerr=deviations, label=task)
    axis.set_xticks(range(len(VARIANCES)), list(VARIANCES))
    axis.set(xlabel="variance of runtimes", ylabel="speed-up")
    axis.legend(fontsize=8)
    save(figure, path)
