"""Figure 6.6: where the time of EfficientNet-B7's requests goes under Usher and AO-MILP on six GPUs.

The setting is that of 6.2.1, AO-MILP with the batch size that is printed, one of several that tie. The
thesis's segments: *router to node* is from the arrival at the router until the node has the batch (building
and sending it), *node to worker* the wait in the worker's queue, *worker* the processing. It draws the 95th
percentile of each; what it says of them in words is checked here. Throughput and goodput count from the
first request to the last answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.placement.evaluation import TimeSpread, stage_report, walked
from astrarium.placement.path import Journeys
from astrarium.placement.problem import PlacementRequests, Problem
from astrarium_papers.drawing import axes_row, save
from astrarium_papers.elvinger._lines import (
    AO_PRINTED,
    JUDGING_SEED,
    USHER,
    VISION,
    System,
    planned,
    travelled,
)
from astrarium_papers.elvinger._v100 import problem
from astrarium_papers.elvinger._world import WARMUP, SharedSms, clients, path
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Where the time of EfficientNet-B7's requests goes, Usher against AO-MILP (Figure 6.6)"
MODEL = "efficientnet_b7"
GPUS = 6
RATE = 500
SLO = 200 * MILLISECOND
REQUESTS = 4000
SEGMENTS = ("router to node", "node to worker", "worker", "end to end")
GOODPUT = {"Usher": 360.61, "AO-MILP": 143.73}
THROUGHPUT = {"Usher": 425.75, "AO-MILP": 425.25}
CURVE = 100  # points of a distribution
_FASTER = "our workers take what the profile says; theirs, Python processes on 8 cores, took longer, it seems"
_RATE = "what a client submits, as put in: ResNet50's 433.34 stands for all; here all is answered"


def run(effort: Effort) -> Findings:
    posed = problem(VISION, RATE, SLO, GPUS)
    requests = clients(posed, REQUESTS, JUDGING_SEED)
    data = {system.label: _measured(system, posed, requests, effort) for system in (USHER, AO_PRINTED)}
    return Findings(_rows(data), _claims(data), data)


def _measured(system: System, posed: Problem, requests: PlacementRequests, effort: Effort) -> dict[str, Any]:
    effort.say(system.label)
    plan = planned(system, posed, effort)
    journeys = walked(posed, plan, requests, SharedSms(posed.models), path=path(posed))
    ours = (journeys.model == VISION.index(MODEL)) & (journeys.asked >= WARMUP)
    summary = travelled(posed, plan, requests)
    limit = max(replica.batch for replica in plan.of_model(VISION.index(MODEL)))
    latency = np.sort(journeys.latency[ours])
    seconds = int(journeys.answered[ours].max() - WARMUP) / SECOND
    return {
        "segments_ms": {name: _percentiles(times[ours]) for name, times in segments(journeys).items()},
        "stages_ms": [
            [stage.model, stage.stage, stage.part, *(_ms(at) for at in (stage.p50, stage.p95, stage.p99))]
            for stage in stage_report(summary)
        ],
        "in_time": summary.of(MODEL).attainment,
        "goodput": summary.of(MODEL).in_time / seconds,
        "throughput": len(latency) / seconds,
        "latencies_ms": [_ms(at) for at in latency[:: max(1, len(latency) // CURVE)].tolist()],
        "batches": _batch_sizes(journeys, ours),
        "limit": limit,
    }


def segments(journeys: Journeys) -> dict[str, Any]:
    return {
        "router to node": journeys.moved - journeys.routed,
        "node to worker": journeys.start - journeys.moved,
        "worker": journeys.done - journeys.start,
        "end to end": journeys.latency,
    }


def _percentiles(times: Any) -> list[float]:
    spread = TimeSpread.of(times)
    assert spread is not None
    return [_ms(spread.p50), _ms(spread.p95), _ms(spread.p99)]


def _ms(time: int) -> float:
    return time / MILLISECOND


def _batch_sizes(journeys: Journeys, ours: Any) -> list[list[float]]:
    """Return when each batch started, in seconds, and its size; one request of a batch stands for it."""
    starts, first = np.unique(journeys.start[ours], return_index=True)
    sizes = journeys.batch[ours][first]
    return [[(at - WARMUP) / SECOND, size] for at, size in zip(starts.tolist(), sizes.tolist(), strict=True)]


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for label, numbers in data.items():
        rows.append(_throughput(label, numbers["throughput"]))
        rows.append(Row(f"{label}: goodput", numbers["goodput"], GOODPUT[label], "r/s", note=_FASTER))
        for segment in SEGMENTS:
            for name, value in zip(("p50", "p95", "p99"), numbers["segments_ms"][segment], strict=True):
                rows.append(Row(f"{label}: {segment}, {name}", value, unit="ms"))
    return rows


def _throughput(label: str, ours: float) -> Row:
    return Row(f"{label}: throughput", ours, THROUGHPUT[label], "r/s", note=_RATE, given=True)


def _claims(data: dict[str, Any]) -> list[Claim]:
    usher, ao = (
        {segment: data[label]["segments_ms"][segment][1] for segment in SEGMENTS} for label in GOODPUT
    )
    parts = {label: data[label]["in_time"] for label in GOODPUT}
    thirds = [(usher[segment], ao[segment]) for segment in SEGMENTS[:3]]
    note = "; ".join(
        f"{name}: {first:.1f} and {last:.1f} ms"
        for name, (first, last) in zip(SEGMENTS[:3], thirds, strict=True)
    )
    sizes = [size for _, size in data["AO-MILP"]["batches"]]
    full = sum(size == data["AO-MILP"]["limit"] for size in sizes) / len(sizes)
    throughputs = [data[label]["throughput"] for label in GOODPUT]
    return [
        Claim(
            "AO-MILP's requests are longer on the way from router to node, and at the worker (p95)",
            ao["router to node"] > 2 * usher["router to node"] and ao["worker"] > 2 * usher["worker"],
            note,
        ),
        Claim(
            "Usher's requests are delayed mainly in the worker's queue (p95)",
            usher["node to worker"] > max(usher["router to node"], usher["worker"]),
            f"{note}; {_FASTER}",
        ),
        Claim(
            "Usher's requests wait longer in the worker's queue than AO-MILP's, which hardly wait (p95)",
            usher["node to worker"] > ao["node to worker"] and ao["node to worker"] < 0.05 * ao["end to end"],
            note,
        ),
        Claim(
            "AO-MILP's batches seldom reach 64: MAX_WAIT_TIME ends them",
            full < 0.5,
            f"{full:.0%} are full, {sum(sizes) / len(sizes):.0f} requests on average",
        ),
        Claim(
            "both placements have the same throughput",
            abs(throughputs[0] / throughputs[1] - 1) < 0.05,
            " and ".join(f"{rate:.1f} r/s" for rate in throughputs),
        ),
        Claim(
            "but AO-MILP loses many requests to the SLO that Usher does not",
            parts["AO-MILP"] < 0.75 * parts["Usher"],
            " and ".join(f"{label} {part:.0%} in time" for label, part in parts.items())
            + " (thesis: 85 % and 34 %)",
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    figure, (bars, curve, sizes) = axes_row(3)
    for place, (label, numbers) in enumerate(data.items()):
        p95 = [numbers["segments_ms"][segment][1] for segment in SEGMENTS]
        bars.barh([at + 0.4 * place for at in range(len(SEGMENTS))], p95, 0.38, label=label)
        latencies = numbers["latencies_ms"]
        curve.plot(latencies, [(at + 1) / len(latencies) for at in range(len(latencies))], label=label)
        sizes.plot(*zip(*numbers["batches"], strict=True), ".", ms=3, label=label)
    bars.set_yticks([at + 0.2 for at in range(len(SEGMENTS))], SEGMENTS)
    bars.set_xlabel("p95 (ms)")
    curve.axvline(SLO / MILLISECOND, color="gray", ls="--")
    curve.set_xlabel("end-to-end latency (ms)")
    curve.set_ylabel("part of the requests")
    sizes.set_xlabel("time (s)")
    sizes.set_ylabel("batch")
    for axis in (bars, curve, sizes):
        axis.legend(fontsize=7)
    save(figure, path)
