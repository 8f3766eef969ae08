"""Figure 8: what dividing a model over GPUs costs, and where that goes.

Inter-operator: computation is what the model takes on one GPU, communication what its stages take more than
that together, uneven partition what is left to stages times the slowest. Intra-operator: communication is
what it takes more than its n-th part.

The figure was drawn from a partition by hand whose measurements were never published. What stands here is
the automatic partition (section 4.1) as the authors measured it, and beside it what our own dynamic program
finds from sizes alone: a layer's time by its floating-point operations, scaled to the measured whole, and one
NVLink of a V100 between GPUs. Nothing else is fitted.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from astrarium.core.quantities import SECOND
from astrarium.placement.problem import ALONE, Form, Shape
from astrarium_papers.alpaserve._common import cases, transformer
from astrarium_papers.alpaserve._common.parallel import Layer, Link, layer_time, parallelize
from astrarium_papers.alpaserve._common.settings import MODEL
from astrarium_papers.alpaserve._common.transformer import BYTES, LENGTH, MODELS
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Where the overhead of model parallelism comes from, BERT-2.6B (Figure 8)"
GPUS = (1, 2, 4, 8)
BERT = MODELS[MODEL]
NVLINK = Link(bandwidth=25e9)  # one link of a V100, each way
MEASURED = "measured"
COMPUTED = "computed"
BY_HAND = "cut by hand"
SLOWER_LINK = (
    "one link of 25 GB/s for all, at its full bandwidth: a pair of GPUs takes longer than that; four and "
    "eight, whose rings may use several links, take less"
)
PARTS = ("computation", "communication", "uneven partition")
COLORS = ("#56B4E9", "#E69F00", "#009E73")


def run(effort: Effort) -> Findings:
    """There is no chance in it, so that all efforts are the same."""
    measured = cases.forms(MODEL)
    model = layers(measured[ALONE].latency(1))
    inter = {
        MEASURED: [measured[Shape(stages)] for stages in GPUS],
        COMPUTED: [parallelize(model, Shape(stages), NVLINK) for stages in GPUS],
        BY_HAND: [by_hand(model, stages) for stages in GPUS],
    }
    intra = {
        MEASURED: [measured[Shape(1, gpus)] for gpus in GPUS],
        COMPUTED: [parallelize(model, Shape(1, gpus), NVLINK) for gpus in GPUS],
    }
    data = {
        "inter": {name: [_inter(form, forms[0]) for form in forms] for name, forms in inter.items()},
        "intra": {name: [_intra(form, forms[0]) for form in forms] for name, forms in intra.items()},
    }
    return Findings(_rows(data), _claims(data), data)


def layers(whole: int) -> list[Layer]:
    """Return attention and the rest of each block, then the head over the vocabulary. They take *whole*
    together."""
    parts = BERT.parts()
    shares = BERT.shares()
    passed = LENGTH * BERT.width * BYTES
    return [
        Layer((0, round(whole * share)), BYTES * part.weights, 0 if part is parts[-1] else passed, passed)
        for part, share in zip(parts, shares, strict=True)
    ]


def by_hand(model: list[Layer], stages: int) -> Form:
    """Return stages of as many blocks each; the head goes with the last."""
    parts = [model[a:b] for a, b in pairwise(transformer.by_hand(BERT.layers, stages))]
    sends = [NVLINK.send(part[-1].output) for part in parts[:-1]] + [0]
    times = [sum(layer_time(layer, 1, 1, NVLINK) for layer in part) for part in parts]
    took = tuple((0, time + sent) for time, sent in zip(times, sends, strict=True))
    return Form(Shape(stages), took, tuple(sum(layer.weights for layer in part) for part in parts))


def _inter(form: Form, alone: Form) -> list[float]:
    """Return the three parts of the time, in seconds."""
    communication = max(form.latency(1) - alone.latency(1), 0)
    slowest = form.shape.stages * form.interval(1)
    return [
        part / SECOND
        for part in (alone.latency(1), communication, max(slowest - alone.latency(1) - communication, 0))
    ]


def _intra(form: Form, alone: Form) -> list[float]:
    computation = alone.latency(1) / form.shape.operators
    return [computation / SECOND, (form.latency(1) - computation) / SECOND, 0.0]


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for place, gpus in enumerate(GPUS[1:], 1):
        inter = data["inter"]
        intra = data["intra"]
        rows.append(
            Row(
                f"{gpus} stages, times the slowest: computed, beside the authors' measurements",
                sum(inter[COMPUTED][place]),
                round(sum(inter[MEASURED][place]), 4),
                "s",
                tolerance=0.1,
                note=f"cut by hand, equal blocks: {sum(inter[BY_HAND][place]):.3f} s",
            )
        )
        rows.append(
            Row(
                f"operators over {gpus} GPUs: computed, beside the authors' measurements",
                sum(intra[COMPUTED][place]),
                round(sum(intra[MEASURED][place]), 4),
                "s",
                tolerance=0.1,
                note=SLOWER_LINK,
            )
        )
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    claims = []
    for name in (MEASURED, COMPUTED):
        inter = data["inter"][name][1:]
        intra = data["intra"][name][1:]
        given = name == MEASURED
        claims += [
            Claim(
                f"inter-operator overhead comes mostly from unevenness ({name})",
                all(uneven > communication for _, communication, uneven in inter),
                "uneven and communication, ms: "
                + ", ".join(f"{1e3 * uneven:.1f} and {1e3 * sent:.1f}" for _, sent, uneven in inter),
                given,
            ),
            Claim(
                f"intra-operator communication costs much more than inter-operator ({name})",
                all(within[1] > 3 * between[1] for within, between in zip(intra, inter, strict=True)),
                "ms: "
                + ", ".join(
                    f"{1e3 * a[1]:.1f} against {1e3 * b[1]:.1f}" for a, b in zip(intra, inter, strict=True)
                ),
                given,
            ),
        ]
    return [*claims, _automatic(data["inter"])]


def _automatic(inter: dict[str, Any]) -> Claim:
    pairs = list(zip(inter[COMPUTED][1:], inter[BY_HAND][1:], strict=True))
    return Claim(
        "the dynamic program leaves less unevenness than equal numbers of blocks (section 4.1)",
        all(program[2] < hand[2] for program, hand in pairs),
        "ms: " + ", ".join(f"{1e3 * program[2]:.1f} against {1e3 * hand[2]:.1f}" for program, hand in pairs),
    )


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2, width=6)
    for axis, (kind, overheads) in zip(
        axes, (("inter", data["inter"]), ("intra", data["intra"])), strict=True
    ):
        width = 0.8 / len(overheads)
        for number, (name, bars) in enumerate(overheads.items()):
            at = [place + (number - (len(overheads) - 1) / 2) * width for place in range(len(GPUS))]
            _stack(axis, at, bars, 0.92 * width, labelled=number == 0)
            for x, parts in zip(at, bars, strict=True):
                axis.text(x, sum(parts), f" {name}", rotation=90, fontsize=6.5, ha="center", va="bottom")
        axis.set_xticks(range(len(GPUS)), [str(gpus) for gpus in GPUS])
        axis.set(
            xlabel="GPUs",
            ylabel="latency (s)",
            title=f"{kind}-operator",
            ylim=(0, 0.45 if kind == "inter" else 0.33),
        )
        axis.legend(fontsize=8, loc="upper left" if kind == "inter" else "upper right")
    save(figure, path)


def _stack(axis: Any, at: list[float], bars: list[list[float]], width: float, labelled: bool) -> None:
    below = [0.0] * len(at)
    for part, (label, color) in enumerate(zip(PARTS, COLORS, strict=True)):
        heights = [bar[part] for bar in bars]
        axis.bar(at, heights, width, bottom=below, color=color, label=label if labelled else None)
        below = [low + height for low, height in zip(below, heights, strict=True)]
