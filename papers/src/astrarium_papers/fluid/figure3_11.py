"""Figure 3.11: packing alone with 9, 27 and 81 trials, scaling alone with fewer trials than the 8 GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astrarium.tuning.scenario.tasks import TASKS
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.fluid._grids import PACKING_ONLY, SCALING_ONLY, grid_speedup
from astrarium_papers.fluid._runs import NO_NUMBER, SHORT, WLM, seeds

TITLE = "Packing alone and scaling alone, grid search on 8 GPUs (Figure 3.11)"
PARTS: dict[str, Mapping[str, int]] = {"packing": PACKING_ONLY, "scaling": SCALING_ONLY}
TRIALS = {"packing": (9, 27, 81), "scaling": (2, 4, 6)}


def run(effort: Effort) -> Findings:
    data: dict[str, Any] = {}
    for part, counts in TRIALS.items():
        for task in TASKS.values():
            effort.say(f"{part}, {SHORT[task.name]}")
            data.setdefault(part, {})[SHORT[task.name]] = {
                f"{count}": tuple(grid_speedup(task, count, seeds(effort), parts=PARTS[part]))
                for count in counts
            }
    return Findings(_rows(data), _claims(data), data)


def _rows(data: dict[str, Any]) -> list[Row]:
    return [
        Row(f"{part} alone, {name}, {count} trials: speed-up", gained[0], None, "x", note=_note(part, gained))
        for part, names in data.items()
        for name, counts in names.items()
        for count, gained in counts.items()
    ]


def _note(part: str, gained: tuple[float, ...]) -> str:
    which = "; which numbers of trials is not printed" if part == "scaling" else ""
    return f"{gained[2]:.2f} to {gained[3]:.2f} over the seeds; {NO_NUMBER}{which}"


def _claims(data: dict[str, Any]) -> list[Claim]:
    packing, scaling = ({name: _means(counts) for name, counts in data[part].items()} for part in PARTS)
    wlm = scaling[SHORT[WLM.name]]
    others = [means[0] for name, means in scaling.items() if name != SHORT[WLM.name]]
    return [
        Claim(
            "packing gains more with larger groups",
            all(means[-1] > means[0] for means in packing.values()),
            _listed(packing),
        ),
        Claim(
            "scaling gains more with smaller groups",
            all(means[0] > means[-1] for means in scaling.values()),
            _listed(scaling),
        ),
        Claim(
            "scaling gains most where the model scales best",
            wlm[0] > max(others),
            _listed(scaling),
            given=True,
        ),
    ]


def _means(counts: dict[str, Any]) -> list[float]:
    return [gained[0] for gained in counts.values()]


def _listed(gains: dict[str, list[float]]) -> str:
    return "; ".join(
        f"{name} " + ", ".join(f"{mean:.2f}x" for mean in means) for name, means in gains.items()
    )


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(data), 4.5)
    for axis, (part, names) in zip(axes, data.items(), strict=True):
        for place, (name, counts) in enumerate(names.items()):
            at = [number + 0.27 * (place - 1) for number in range(len(counts))]
            deviations = [gained[1] for gained in counts.values()]
            axis.bar(at, _means(counts), 0.25, yerr=deviations, label=name)
        axis.set_xticks(range(len(TRIALS[part])), [f"{count}" for count in TRIALS[part]])
        axis.set(xlabel="trials", ylabel="speed-up", title=f"{part} alone")
    axes[0].legend(fontsize=8)
    save(figure, path)
