"""What was measured of pairs, in a number for each system, and as bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean, pstdev
from typing import Any

from astrarium_papers.orion._settings import LABELS


def points(data: Mapping[str, Any], system: str) -> list[dict[str, float]]:
    """Return all pairs of a system."""
    return [numbers for systems in data.values() for numbers in systems[system].values()]


def over_ideal(data: Mapping[str, Any], system: str) -> float:
    """Return the p99 latency over that alone: the mean of all pairs."""
    return mean(numbers["p99"] / numbers["p99_alone"] for numbers in points(data, system))


def kept(data: Mapping[str, Any], system: str) -> float:
    """Return the latency client's throughput over that alone: the mean of all pairs."""
    return mean(numbers["rate"] / numbers["rate_alone"] for numbers in points(data, system))


def best_effort_kept(data: Mapping[str, Any], system: str) -> float:
    return mean(numbers["best_effort"] / numbers["best_effort_alone"] for numbers in points(data, system))


def aggregate(data: Mapping[str, Any], system: str) -> float:
    """Return the largest throughput of both over that of the latency client on a GPU of its own."""
    return max((n["rate"] + n["best_effort"]) / n["rate_alone"] for n in points(data, system))


def per_system(data: Mapping[str, Any], systems: Iterable[str]) -> str:
    return ", ".join(f"{system} {over_ideal(data, system):.2f}x" for system in systems)


def spread(data: Mapping[str, Any], model: str, system: str) -> float:
    """Return how much p99 differs by the client beside, as a share of its mean."""
    values = [numbers["p99"] for numbers in data[model][system].values()]
    return float(pstdev(values) / mean(values))


def p99_bars(data: Mapping[str, Any], axis: Any, colors: Mapping[str, str]) -> None:
    """Draw bars as the paper does: a group for each latency model, the mean over the clients beside."""
    systems = ["Ideal", *next(iter(data.values()))]
    width = 0.8 / len(systems)
    for place, system in enumerate(systems):
        heights, spreads = zip(*(_bar(by_system, system) for by_system in data.values()), strict=True)
        at = [group + (place - len(systems) / 2) * width for group in range(len(data))]
        axis.bar(at, heights, width, yerr=spreads, label=system, color=colors[system])
    axis.set_xticks(range(len(data)), [LABELS[model] for model in data])
    axis.set(ylabel="p99 latency (ms)", yscale="log")
    axis.legend(fontsize=7, ncols=2)


def _bar(by_system: Mapping[str, Any], system: str) -> tuple[float, float]:
    if system == "Ideal":
        some = next(iter(by_system.values()))
        return mean(numbers["p99_alone"] for numbers in some.values()), 0.0
    values = [numbers["p99"] for numbers in by_system[system].values()]
    return mean(values), pstdev(values)


def throughput_bars(data: Mapping[str, Any], axis: Any, colors: Mapping[str, str]) -> None:
    """Draw the latency client's throughput with the best-effort one's on top."""
    systems = list(next(iter(data.values())))
    width = 0.8 / len(systems)
    for place, system in enumerate(systems):
        at = [group + (place - len(systems) / 2) * width for group in range(len(data))]
        low = [mean(n["rate"] for n in by_system[system].values()) for by_system in data.values()]
        high = [mean(n["best_effort"] for n in by_system[system].values()) for by_system in data.values()]
        axis.bar(at, low, width, label=system, color=colors[system])
        axis.bar(at, high, width, bottom=low, color=colors[system], alpha=0.4)
    axis.set_xticks(range(len(data)), [LABELS[model] for model in data])
    axis.set(ylabel="requests or iterations a second")
    axis.legend(fontsize=7, ncols=2)
