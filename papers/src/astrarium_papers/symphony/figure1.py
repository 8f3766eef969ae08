"""Figure 1: how large the batches are in which requests run, at each system's own goodput."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from astrarium.serving.record import Ints
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony._at_goodput import AtGoodput, Case, measure
from astrarium_papers.symphony._settings import SYSTEMS, TABLE2

TITLE = "Batch sizes at each system's goodput, 8 GPUs (Figure 1)"
# Medians. The text speaks of "the majority of requests", so each request
# counts once, with the size of the batch it ran in; a median over batches would favour small batches.
PAPER = {
    "ResNet50": {"Symphony": 14, "Clockwork": 1, "Nexus": 6, "Shepherd": 9},
    "InceptionResNetV2": {"Symphony": 8, "Clockwork": 1, "Nexus": 2, "Shepherd": 4},
}


def run(effort: Effort) -> Findings:
    runs = measure(effort)
    data: dict[str, Any] = {model: {} for model in TABLE2}
    rows = []
    for model in TABLE2:
        for system in SYSTEMS:
            numbers = data[model][system] = _distribution(runs[Case(model, system)])
            delayed = _distribution(runs[Case(model, system, delayed=True)])
            note = (
                f"{numbers['median_over_batches']:g} if each batch counts once; "
                f"{delayed['median']:g} with the network delays of the authors' code"
            )
            what = f"{model}: median batch, {system}"
            rows.append(Row(what, numbers["median"], PAPER[model][system], tolerance=0.15, note=note))
    return Findings(rows, _claims(data), data)


def _distribution(runs: AtGoodput) -> dict[str, Any]:
    sizes, counts = np.unique(runs.sizes, return_counts=True)
    return {
        "rate": runs.rate,
        "median": float(np.median(runs.sizes)),
        "median_over_batches": _median_over_batches(sizes, counts),
        "sizes": sizes.tolist(),
        "shares": (np.cumsum(counts) / counts.sum()).tolist(),
        "quartiles": np.percentile(runs.sizes, (25, 75)).tolist(),
    }


def _median_over_batches(sizes: Ints, counts: Ints) -> float:
    batches = np.cumsum(counts / sizes)
    return float(sizes[np.searchsorted(batches, batches[-1] / 2)])


def _claims(data: dict[str, Any]) -> list[Claim]:
    smaller = []
    wider = []
    for systems in data.values():
        symphony = systems["Symphony"]
        smaller += [systems[name]["median"] < symphony["median"] for name in SYSTEMS if name != "Symphony"]
        wider.append(_spread(systems["Shepherd"]) > _spread(symphony))
    return [
        Claim("the batches of all three earlier systems are smaller than Symphony's", all(smaller)),
        Claim(
            "Shepherd's batch sizes are more spread out than Symphony's",
            all(wider),
            "; ".join(
                f"{model}: the middle half spans {_spread(systems['Shepherd']):g} sizes, Symphony's "
                f"{_spread(systems['Symphony']):g}"
                for model, systems in data.items()
            ),
        ),
    ]


def _spread(distribution: dict[str, Any]) -> float:
    low, high = distribution["quartiles"]
    return float(high - low)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import SYSTEM_COLORS, axes_row, save

    figure, axes = axes_row(len(data), height=4.4)
    for axis, (model, systems) in zip(axes, data.items(), strict=True):
        for system, curve in systems.items():
            sizes = [0, *curve["sizes"]]
            shares = [0, *curve["shares"]]
            label = f"{system} (at {curve['rate']:,.0f}/s)"
            axis.step(sizes, shares, where="post", label=label, color=SYSTEM_COLORS[system])
            axis.plot(PAPER[model][system], 0.5, "o", color=SYSTEM_COLORS[system], markerfacecolor="white")
        axis.plot([], [], "o", color="#666666", markerfacecolor="white", label="median in the paper")
        axis.set(title=model, xlabel="batch size", ylabel="share of requests", ylim=(0, 1.02), xlim=(0, None))
        axis.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    save(figure, path)
