"""What Figures 6, 7, 11 and 12 have in common: the p99 latency of inference with something beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from astrarium.core.units import SECOND, Time
from astrarium.experiments.gate import Party
from astrarium.reproduce.findings import Claim, Effort, Row
from astrarium.reproduce.orion._pairs import (
    Pair,
    aggregate,
    best_effort_kept,
    measure,
    over_ideal,
    p99_bars,
    per_system,
    spread,
    throughput_bars,
)
from astrarium.reproduce.orion._settings import COLORS, LABELS, SYSTEMS, inference, known, training
from astrarium.workloads.processes import Times

Arrive = Callable[[str, Time], Times]
PAPERS = tuple(system for system in SYSTEMS if system != "Astrarium")
REEF_WHY = (
    "a dozen kernels in flight cost at most the sum of their durations here; the paper's REEF-N must have "
    "waited for more"
)
KEPT = (
    "here a best-effort client loses hardly more than the time in which the latency client runs; the paper's "
    "were threads of one Python process, which share its interpreter in all they do"
)
STEADY = 0.05
WITHIN = 1.10  # of alone: what our own policy is asked to keep on average


def beside_training(
    models: Sequence[str], others: Sequence[str], arrive: Arrive, seconds: float, effort: Effort
) -> Any:
    duration = round(seconds * SECOND)
    trained = [training(model) for model in known(others, "training")]
    served = [inference(model, arrive(model, duration)) for model in known(models, "inference")]
    return measure([Pair(one, other) for one in served for other in trained], SYSTEMS, duration, effort)


def beside_inference(
    models: Sequence[str],
    others: Sequence[str],
    arrive: Arrive,
    beside: Arrive,
    seconds: float,
    effort: Effort,
) -> Any:
    """Each model beside each of the others."""
    duration = round(seconds * SECOND)
    names = known(others, "inference")
    best_effort: dict[str, Party] = {name: inference(name, beside(name, duration), False) for name in names}
    served = [inference(model, arrive(model, duration)) for model in known(models, "inference")]
    pairs = [Pair(one, best_effort[name]) for one in served for name in names if name != one.name]
    return measure(pairs, SYSTEMS, duration, effort)


def rows(data: Mapping[str, Any], reef: float, orion: float, note: str = "") -> list[Row]:
    """The ratios to ideal that the text prints, and ours of the systems that it only draws."""
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


def gain(data: Mapping[str, Any], paper: float) -> Row:
    what = "Orion: throughput of both over inference alone, at most"
    return Row(what, aggregate(data, "Orion"), paper, "x", 0.1, KEPT)


def claims(data: Mapping[str, Any]) -> list[Claim]:
    ratios = {system: over_ideal(data, system) for system in SYSTEMS}
    note = per_system(data, SYSTEMS)
    orion, others = ratios["Orion"], [ratios[system] for system in PAPERS if system != "Orion"]
    return [
        Claim("of the paper's systems Orion has the lowest tail latency", orion <= min(others) * 1.01, note),
        Claim(
            "temporal sharing makes requests wait for whole iterations: the highest", _highest(ratios), note
        ),
        Claim(
            "Streams and MPS do not protect the latency client",
            min(ratios["Streams"], ratios["MPS"]) >= 1.25,
            f"at least 1.25x counts; {note}",
        ),
        _steady(data),
        Claim(
            f"our own policy stays within {WITHIN:.2f}x of alone on average",
            ratios["Astrarium"] <= WITHIN,
            f"{ratios['Astrarium']:.2f}x; best effort keeps {best_effort_kept(data, 'Astrarium'):.0%} of its "
            f"throughput alone, under Orion {best_effort_kept(data, 'Orion'):.0%}",
        ),
    ]


def _highest(ratios: Mapping[str, float]) -> bool:
    return max(ratios, key=lambda system: ratios[system]) == "Temporal"


def _steady(data: Mapping[str, Any]) -> Claim:
    found = {system: mean(spread(data, model, system) for model in data) for system in PAPERS}
    note = ", ".join(f"{system} {share:.1%}" for system, share in found.items())
    return Claim(
        "Orion's latency hardly depends on the client beside",
        found["Orion"] <= STEADY,
        f"standard deviation over the clients beside, of the mean, at most {STEADY:.0%}: {note}",
    )


def draw(data: Mapping[str, Any], path: Path) -> None:
    from astrarium.reproduce.drawing import axes_row, save

    figure, axes = axes_row(2, width=2 + 1.3 * len(LABELS))
    p99_bars(data, axes[0], COLORS)
    throughput_bars(data, axes[1], COLORS)
    save(figure, path)
