"""What Figures 6, 7, 11 and 12 have in common: the p99 latency of inference with something beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from astrarium.core.processes import Times
from astrarium.core.quantities import SECOND, Time
from astrarium_papers.findings import Claim, Effort, Row
from astrarium_papers.gate_simulation import Party, Sharing
from astrarium_papers.orion._pair_summary import (
    aggregate,
    best_effort_kept,
    over_ideal,
    p99_bars,
    per_system,
    spread,
    throughput_bars,
)
from astrarium_papers.orion._pairs import Pair, measure
from astrarium_papers.orion._settings import CHOSEN, COLORS, LABELS, SYSTEMS, V100, Kernels

Arrive = Callable[[str, Time], Times]
PAPERS = tuple(system for system in SYSTEMS if system != "Astrarium")
EAGER_WHY = (
    "with recordings a best-effort client without a graph is busy with launching: its kernels are short and "
    "seldom there when a request comes"
)
REEF_WHY = (
    "a dozen kernels in flight cost at most the sum of their durations here; the paper's REEF-N must have "
    "waited for more"
)
KEPT = (
    "here a best-effort client loses hardly more than the time in which the latency client runs; the paper's "
    "were threads of one Python process, which share its interpreter in all they do"
)
LONG_KERNELS = (
    "some kernels of training jobs take as long here as a whole request (those of MobileNetV2 and the "
    "Transformer up to 1.2 ms), and nothing stops one that runs; the gate's partitions for such kernels are "
    "not simulated"
)
STEADY = 0.05
WITHIN = 1.10  # of alone: what our own policy is asked to keep on average


def beside_training(
    kernels: Kernels,
    models: Sequence[str],
    others: Sequence[str],
    arrive: Arrive,
    seconds: float,
    effort: Effort,
    systems: Mapping[str, Sharing] = SYSTEMS,
) -> Any:
    duration = round(kernels.seconds(seconds) * SECOND)
    trained = [kernels.training(model) for model in kernels.known(others, "training")]
    names = kernels.known(models, "inference")
    served = [kernels.inference(model, arrive(model, duration)) for model in names]
    return measure(
        [Pair(latency, best_effort) for latency in served for best_effort in trained],
        systems,
        duration,
        effort,
    )


def beside_inference(
    kernels: Kernels,
    models: Sequence[str],
    others: Sequence[str],
    arrive: Arrive,
    beside: Arrive,
    seconds: float,
    effort: Effort,
) -> Any:
    """Measure each model beside each of the others."""
    duration = round(kernels.seconds(seconds) * SECOND)
    names = kernels.known(others, "inference")
    best_effort: dict[str, Party] = {
        name: kernels.inference(name, beside(name, duration), False) for name in names
    }
    served = [
        kernels.inference(model, arrive(model, duration)) for model in kernels.known(models, "inference")
    ]
    pairs = [Pair(latency, best_effort[name]) for latency in served for name in names if name != latency.name]
    return measure(pairs, SYSTEMS, duration, effort)


def rows(data: Mapping[str, Any], reef: float, orion: float, note: str = "") -> list[Row]:
    """Return the ratios to ideal that the text prints, and ours of the systems that it only draws."""
    why = f"{REEF_WHY}; {note}" if note else REEF_WHY
    return [
        Row("REEF: p99 over ideal, mean", over_ideal(data, "REEF"), reef, "x", 0.15, why),
        Row("Orion: p99 over ideal, mean", over_ideal(data, "Orion"), (1.0, orion), "x", 0.02, note),
        *(
            Row(f"{system}: p99 over ideal, mean", over_ideal(data, system), None, "x", note=note)
            for system in ("Temporal", "Streams", "MPS", "Astrarium")
        ),
        *(
            Row(
                f"{system}: best-effort throughput over alone, mean", best_effort_kept(data, system), unit="x"
            )
            for system in SYSTEMS
        ),
    ]


def on_v100(of: Callable[[Kernels], list[Row]]) -> list[Row]:
    """Return the rows that the paper has numbers for, once more on workloads like those of its own GPU."""
    if CHOSEN == V100:
        return []
    printed = [row for row in of(V100) if row.paper is not None]
    return [msgspec.structs.replace(row, what=f"V100-like: {row.what}") for row in printed]


def gain(data: Mapping[str, Any], paper: float) -> Row:
    what = "Orion: throughput of both over inference alone, at most"
    return Row(what, aggregate(data, "Orion"), paper, "x", 0.1, KEPT)


def claims(data: Mapping[str, Any], long_kernels: str = "", unprotected: str = "") -> list[Claim]:
    """Return the claims, with reasons for those that may not hold: kernels are long, nobody needs
    protection."""
    ratios = {system: over_ideal(data, system) for system in SYSTEMS}
    note = per_system(data, SYSTEMS)
    orion = ratios["Orion"]
    others = [ratios[system] for system in PAPERS if system != "Orion"]
    return [
        Claim("of the paper's systems Orion has the lowest tail latency", orion <= min(others) * 1.01, note),
        Claim(
            "temporal sharing makes requests wait for whole iterations: the highest", _highest(ratios), note
        ),
        _claim(
            "Streams and MPS do not protect the latency client",
            min(ratios["Streams"], ratios["MPS"]) >= 1.25,
            f"at least 1.25x counts; {note}",
            unprotected,
        ),
        _steady(data, long_kernels),
        _claim(
            f"our own policy stays within {WITHIN:.2f}x of alone on average",
            ratios["Astrarium"] <= WITHIN,
            f"{ratios['Astrarium']:.2f}x; best effort keeps {best_effort_kept(data, 'Astrarium'):.0%} of its "
            f"throughput alone, under Orion {best_effort_kept(data, 'Orion'):.0%}",
            long_kernels,
        ),
    ]


def _claim(what: str, holds: bool, note: str, why: str) -> Claim:
    return Claim(what, holds, note if holds or not why else f"{note}; {why}")


def _highest(ratios: Mapping[str, float]) -> bool:
    return max(ratios, key=lambda system: ratios[system]) == "Temporal"


def _steady(data: Mapping[str, Any], why: str) -> Claim:
    spreads = {system: mean(spread(data, model, system) for model in data) for system in PAPERS}
    note = ", ".join(f"{system} {share:.1%}" for system, share in spreads.items())
    return _claim(
        "Orion's latency hardly depends on the client beside",
        spreads["Orion"] <= STEADY,
        f"standard deviation over the clients beside, of the mean, at most {STEADY:.0%}: {note}",
        why,
    )


def draw(data: Mapping[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2, width=2 + 1.3 * len(LABELS))
    p99_bars(data, axes[0], COLORS)
    throughput_bars(data, axes[1], COLORS)
    save(figure, path)
