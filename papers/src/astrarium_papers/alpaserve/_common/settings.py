"""What AlpaServe's section 3 shares: two ways to place models, Gamma traffic, and spreads over seeds.

Not in the paper, but in its authors' public code (alpa-projects/mms, experiments/motivation), and kept here:
- these figures come from their fast simulator: every stage takes 0.9 % longer for each stage there is, every
  answer 11 ms more, and a request goes to the replica whose last stage is free first;
- rates are totals over all models, which share them equally unless said otherwise (the text has 20 requests/s
  for each of the 8 models, which is several times what 8 GPUs can do);
- GB are GiB, and only weights count against memory.
Chosen by us: arrivals are those of a process that has long run, and every point is the mean over several
seeds, the same requests for both placements. Ten seconds at both ends do not count, as with the authors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any, TypeVar

import msgspec

from astrarium.core.quantities import SECOND
from astrarium.core.random_streams import stream
from astrarium.placement.groups.layout import Group, GroupLayout, Served, Tables
from astrarium.placement.groups.runtime import DEFAULT, GroupRuntime
from astrarium.placement.groups.simulation import SimulatedRequests, simulate_groups
from astrarium.placement.problem import ALONE, PlacedModel, Shape
from astrarium_papers.alpaserve._common import cases, workloads
from astrarium_papers.alpaserve._common.served import TRIM, Statistics, TrimmedRequests, statistics, trimmed
from astrarium_papers.findings import Effort, Row

Result = TypeVar("Result")

SIMPLE = "Simple placement"
REPLICATION = "Replication"
PARALLEL = "Model parallelism"
COLORS = {SIMPLE: "#D55E00", REPLICATION: "#D55E00", PARALLEL: "#0072B2"}
GIB = 2**30
WITHOUT_OVERHEADS = GroupRuntime(stage_overhead=0.0, fixed_overhead=0)

# Section 3.2: 8 models of 2.6 billion parameters on 8 GPUs.
MODEL = "bert-2.6b"
COUNT = 8
RATE = 20.0
CV = 3.0
PIPELINE = Shape(stages=8)
COPIES = 2  # of each model, that the memory of a V100 has room for


def traffic(rates: Sequence[float], cv: float, seconds: float, seed: int) -> TrimmedRequests:
    """Return requests of models that have these rates."""
    generator = stream(seed, "alpaserve", "section 3")
    times, models = workloads.windows([list(rates)], cv, seconds, generator, stationary=True)
    return trimmed(times, models, len(rates), TRIM)


def equally(rate: float, models: int = COUNT) -> list[float]:
    return workloads.rates(rate, models, "uniform")


def replicated(models: int, copies: int) -> list[Group]:
    """Return a GPU for each model and its next neighbours, as in the paper's Figure 3a."""
    return [
        Group((gpu,), ALONE, tuple(sorted((gpu + step) % models for step in range(copies))))
        for gpu in range(models)
    ]


def pipelined(models: int, gpus: int, stages: int) -> list[Group]:
    """Return pipelines over *stages* GPUs, each with all models, as in Figure 3b."""
    everything = tuple(range(models))
    return [
        Group(tuple(range(first, first + stages)), Shape(stages), everything)
        for first in range(0, gpus, stages)
    ]


def outcome(
    models: Sequence[PlacedModel],
    groups: Sequence[Group],
    workload: SimulatedRequests,
    runtime: GroupRuntime = DEFAULT,
) -> Served:
    return simulate_groups(GroupLayout.of(Tables.of(models, runtime), groups), workload)


def fared(
    models: Sequence[PlacedModel],
    groups: Sequence[Group],
    workload: TrimmedRequests,
    runtime: GroupRuntime = DEFAULT,
) -> Statistics:
    return statistics(outcome(models, groups, workload, runtime), workload)


def compared(
    rate: float, cv: float, seconds: float, seed: int, slo: float | None = None
) -> dict[str, Statistics]:
    """Serve section 3.2's two placements: one pipeline over all GPUs, or as many replicas as a V100 holds."""
    models = cases.placed_models([MODEL] * COUNT, equally(rate), slo)
    return _placements(models, traffic(equally(rate), cv, seconds, seed), DEFAULT)


def _placements(
    models: Sequence[PlacedModel], workload: TrimmedRequests, runtime: GroupRuntime
) -> dict[str, Statistics]:
    return {
        PARALLEL: fared(models, pipelined(COUNT, COUNT, PIPELINE.stages), workload, runtime),
        REPLICATION: fared(models, replicated(COUNT, COPIES), workload, runtime),
    }


def on_their_requests(rate: float, seconds: float, slo: float | None = None) -> dict[str, Statistics]:
    """Simulate requests as the authors' code draws and counts them: its numbers must come out to the last
    digit."""
    ways = cases.AS_PUBLISHED
    case = cases.Case((MODEL,) * COUNT, COUNT, rate, CV, slo, seconds, "uniform")
    workload = trimmed(*cases.columns(case, ways, 0), COUNT, ways.trim / ways.runtime.unit)
    return _placements(case.placed(), workload, ways.runtime)


class Point(msgspec.Struct, frozen=True):
    """How a placement fares at one point of a sweep, over seeds. Latencies are in seconds."""

    mean: list[float]
    p99: list[float]
    attainment: list[float]

    @classmethod
    def of(cls, statistics: Sequence[Statistics]) -> Point:
        return cls(
            [round(seed.mean / SECOND, 4) for seed in statistics],
            [round(seed.p99 / SECOND, 4) for seed in statistics],
            [round(seed.attainment, 5) for seed in statistics],
        )


def sweep(
    effort: Effort,
    values: Sequence[float],
    seeds: int,
    measure: Callable[[float, int], dict[str, Statistics]],
    say: str,
) -> dict[str, list[dict[str, Any]]]:
    """Return, for every placement, a point for each value."""

    def at(value: float) -> dict[str, Point]:
        effort.say(f"{say} {value:g}")
        samples = [measure(value, seed) for seed in range(1, seeds + 1)]
        return {name: Point.of([sample[name] for sample in samples]) for name in samples[0]}

    points = effort.map(at, values)
    return {name: [msgspec.to_builtins(point[name]) for point in points] for name in points[0]}


def means(points: Sequence[dict[str, Any]], what: str) -> list[float]:
    """Return the mean of each point."""
    return [mean(point[what]) for point in points]


def ratios(data: dict[str, Any], what: str = "mean") -> list[float]:
    """Return replication over model parallelism, at each value of a sweep."""
    pair = (means(data["placements"][name], what) for name in (REPLICATION, PARALLEL))
    return [replication / parallel for replication, parallel in zip(*pair, strict=True)]


def ratio_rows(data: dict[str, Any], form: str) -> list[Row]:
    """Return rows for ratios that the paper does not print. *form* says where, such as "at CV {:g}"."""
    rows = []
    for place, (value, ratio) in enumerate(zip(data["values"], ratios(data), strict=True)):
        both = {name: points[place] for name, points in data["placements"].items()}
        note = "; ".join(
            f"{name}: {spread(point['mean'])} s, p99 {mean(point['p99']):.2f} s"
            for name, point in both.items()
        )
        what = f"mean latency of replication over model parallelism {form.format(value)}"
        rows.append(Row(what, ratio, note=note))
    return rows


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return a spread for notes: 1.83 (1.71 to 1.95 over 5 seeds)."""
    ends = f"{min(values):{form}} to {max(values):{form}}"
    return f"{mean(values):{form}} ({ends} over {len(values)} seeds)"


def crossing(values: Sequence[float], ahead: Sequence[float]) -> float | None:
    """Return where *ahead* falls to zero for good, along a line between two points; the first value if it
    never was above, None if it is so to the end."""
    last = max((place for place, value in enumerate(ahead) if value > 0), default=None)
    if last is None:
        return values[0]
    if last + 1 == len(values):
        return None
    share = ahead[last] / (ahead[last] - ahead[last + 1])
    return values[last] + share * (values[last + 1] - values[last])


def draw_sweep(axis: Any, data: dict[str, Any], what: str, scale: float = 1.0) -> None:
    """Draw a line for each placement, and what the seeds differ."""
    for name, points in data["placements"].items():
        at = [scale * value for value in means(points, what)]
        low = [scale * min(point[what]) for point in points]
        high = [scale * max(point[what]) for point in points]
        axis.plot(data["values"], at, marker=".", color=COLORS[name], label=name)
        axis.fill_between(data["values"], low, high, color=COLORS[name], alpha=0.15, lw=0)
    axis.legend(fontsize=8)
