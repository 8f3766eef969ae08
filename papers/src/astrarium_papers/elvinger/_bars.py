"""Stacked bars of goodput by model, in groups, as the thesis draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MODEL_COLORS = {
    "alexnet": "#E69F00",
    "densenet121": "#56B4E9",
    "efficientnet_b7": "#009E73",
    "resnet50": "#D55E00",
    "vgg19": "#CC79A7",
    "mobilenet_v2": "#0072B2",
    "bert": "#F0E442",
    "gpt2": "#999999",
}


def draw_groups(
    axis: Any, groups: Sequence[tuple[str, Sequence[tuple[str, Mapping[str, float]]]]], models: Sequence[str]
) -> None:
    """Draw *groups*, which are named; each has bars with a label and goodput by model."""
    at = 0
    ticks = []
    names = []
    for group, bars in groups:
        first = at
        for label, goodput in bars:
            bottom = 0.0
            for model in models:
                height = goodput.get(model, 0.0)
                axis.bar(at, height, 0.85, bottom=bottom, color=MODEL_COLORS[model])
                bottom += height
            ticks.append(at)
            names.append(label)
            at += 1
        middle = (first + at - 1) / 2
        axis.annotate(group, (middle, 1.01), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
        at += 1
    axis.set_xticks(ticks, names, rotation=90, fontsize=6)
    axis.set_ylabel("goodput (r/s)")


def legend(figure: Any, models: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=MODEL_COLORS[model], label=model) for model in models]
    figure.legend(handles=handles, loc="upper center", ncols=len(models), fontsize=8)
