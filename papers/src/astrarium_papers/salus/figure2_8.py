"""Figure 2.8: short jobs overtake a long one under SRTF, and what that looks like in memory.

The jobs of the snapshot are not printed, only their story; these play it: #1 interrupts #0, #3 goes before #2
because it is shorter, #5 interrupts #4, and #0 has the GPU whenever nobody shorter is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.core.quantities import SECOND
from astrarium.device import salus
from astrarium.device.contract import Job
from astrarium.device.level import Arrival
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.salus._settings import Iteration, iterations_of, milliseconds, named

TITLE = "Short jobs overtake a long one under SRTF (Figure 2.8)"
# Of Table A.1: arrival and length in seconds.
JOBS = (
    ("inception4_50", 0, 600),
    ("googlenet_100", 20, 40),
    ("resnet50_25", 35, 40),
    ("alexnet_50", 45, 20),
    ("vgg16_25", 140, 60),
    ("resnet50_50", 160, 20),
)
SHOWN_S = 240
AROUND_SWITCH_S = 1.5
MB = 10**6

Span = tuple[int, float, float]  # the job, from, to: in seconds


def run(effort: Effort) -> Findings:
    arrivals = [_arrival(number, *job) for number, job in enumerate(JOBS)]
    iterations = iterations_of("srtf", arrivals)
    jobs = [job for _, job in arrivals]
    data = {
        "jobs": [{"name": name, "arrival_s": at} for name, at, _ in JOBS],
        "spans": spans(iterations),
        "memory": _memory(iterations, jobs),
        "waits_ms": [milliseconds(_wait(number, at, iterations)) for number, (at, _) in enumerate(arrivals)],
        "iteration_ms": milliseconds(jobs[0].iteration),
    }
    return Findings(_rows(data), _claims(data), data)


def _arrival(number: int, name: str, at: int, length: int) -> Arrival:
    return at * SECOND, named(number, name, length * SECOND // salus.lookup(name).iteration)


def spans(iterations: list[Iteration]) -> list[Span]:
    """Return spans of iterations of one job that follow each other."""
    held: list[Span] = []
    for job, start, end in iterations:
        if held and held[-1][0] == job and held[-1][2] == start / SECOND:
            start = round(held.pop()[1] * SECOND)
        held.append((job, start / SECOND, end / SECOND))
    return held


def _wait(number: int, arrival: int, iterations: list[Iteration]) -> int:
    return next(start for job, start, _ in iterations if job == number) - arrival


def _memory(iterations: list[Iteration], jobs: list[Job]) -> dict[str, Any]:
    """Return, around the first switch, what each iteration holds in the lane, beside what stays."""
    at = next(start for job, start, _ in iterations if job == 1)
    near = [iteration for iteration in iterations if abs(iteration[1] - at) < AROUND_SWITCH_S * SECOND]
    held = [(job, start / SECOND, end / SECOND, jobs[job].ephemeral / MB) for job, start, end in near]
    return {
        "switch_s": at / SECOND,
        "persistent_mb": sum(jobs[j].persistent for j in (0, 1)) / MB,
        "held": held,
    }


def _gap_ms(data: dict[str, Any]) -> float:
    """Return the gap between the last iteration of the first job and the first of the second."""
    switch = data["memory"]["switch_s"]
    before = max(end for _, _, end, _ in data["memory"]["held"] if end <= switch)
    return round(1000 * float(switch - before), 3)


def _rows(data: dict[str, Any]) -> list[Row]:
    return [
        Row("job #1 waits for the iteration boundary", data["waits_ms"][1], unit="ms",
            note=f"an iteration of #0 takes {data['iteration_ms']:.0f} ms"),
        Row("the GPU is idle at the switch", _gap_ms(data), unit="ms",
            note="switching costs nothing in simulation; on a GPU it is measured"),
    ]  # fmt: skip


def _claims(data: dict[str, Any]) -> list[Claim]:
    order = [job for job, _, _ in data["spans"]]
    ends = {job: end for job, _, end in data["spans"]}
    background = [(start, end) for job, start, end in data["spans"] if job == 0]
    present = [(at["arrival_s"], ends[number]) for number, at in enumerate(data["jobs"]) if number]
    slack = data["iteration_ms"] / 1000
    alone = all(end <= came + slack or start >= gone for start, end in background for came, gone in present)
    return [
        Claim(
            "job #0 stops at the next iteration boundary when #1 arrives",
            data["waits_ms"][1] <= data["iteration_ms"],
            f"{data['waits_ms'][1]:.0f} ms later",
        ),
        Claim("#3 goes before #2, which came earlier", order.index(3) < order.index(2), "it is shorter"),
        Claim(
            "#5 interrupts #4 and runs to its end",
            order.count(5) == 1 and order.count(4) == 2,
            f"the order of turns is {', '.join(f'#{job}' for job in order)}",
        ),
        Claim("#0 runs only while nobody shorter is there", alone, "but for the iteration under way"),
        Claim(
            "at a switch the next job's iteration starts as the last one's ends",
            _gap_ms(data) == 0,
            "switching costs nothing in simulation; that what the second job needs is on the GPU already is "
            "measured on a GPU",
            given=True,
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (turns, memory) = axes_row(2, width=5.5)
    ends = {job: end for job, _, end in data["spans"]}
    for number, job in enumerate(data["jobs"]):
        present = min(ends[number], SHOWN_S) - job["arrival_s"]
        turns.barh(number, present, left=job["arrival_s"], color="#DDDDDD", height=0.6)
    for job, start, end in data["spans"]:
        turns.barh(job, end - start, left=start, color="#000000", height=0.6)
    turns.set(xlim=(0, SHOWN_S), xlabel="time (s); gray: waits", ylabel="job #")
    kept = data["memory"]["persistent_mb"] / 1000
    for job, start, end, held in data["memory"]["held"]:
        color = ("#0072B2", "#D55E00")[job]
        memory.bar(start, held / 1000, end - start, bottom=kept, align="edge", color=color, edgecolor="white")
    memory.axhspan(0, kept, color="#BBBBBB")
    memory.set(xlabel="time (s)", ylabel="GPU memory (GB)", title="gray: what stays of both jobs")
    save(figure, path)
