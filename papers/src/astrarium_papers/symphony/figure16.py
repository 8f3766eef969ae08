"""Figure 16 (Appendix A.2): 800 models over 20 sub-clusters, balanced by programs or by chance.

Models are drawn from the zoo, rates from an exponential distribution. The zoo has no sizes, so each of its
models gets one between 20 and 600 MiB. What is balanced is the rate and the memory. The paper gives both
searches 10 s; here efforts are counted, so that every machine finds the same: chance gets so many draws as
our machine makes in about 10 s. That programs are significantly better than chance is what the paper says of
400 models over 4 (Appendix A.1).
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from astrarium.core.random_streams import stream
from astrarium.serving import zoo
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony._subclusters import Division, Member, Subclusters, divide, random_search

TITLE = "800 models over 20 sub-clusters, by programs and by chance (Figure 16)"
CONFIGURATIONS = 10
DRAWS = 400_000
LIMIT_S = 10.0
GPU = "A100"
MIB = 2**20
MEAN_RATE = 100.0
PROGRAM = "program"
CHANCE = "chance"
MACHINE = "by this machine's clock"
COLORS = {PROGRAM: "#0072B2", CHANCE: "#D55E00"}


class Solution(NamedTuple):
    program: Division
    chance: Division
    cpu_s: float  # of the program


def run(effort: Effort) -> Findings:
    models, parts, draws, configurations = effort.pick((60, 3, 300, 2), (800, 20, DRAWS, CONFIGURATIONS))
    solved = [_solved(task(seed, models, parts), draws, seed, effort) for seed in range(configurations)]
    data: dict[str, Any] = {
        "models": models,
        "parts": parts,
        "cpu_s": [solution.cpu_s for solution in solved],
        "load": {PROGRAM: [solution.program.load_imbalance for solution in solved]},
        "memory": {PROGRAM: [solution.program.memory_imbalance for solution in solved]},
    }
    data["load"][CHANCE] = [solution.chance.load_imbalance for solution in solved]
    data["memory"][CHANCE] = [solution.chance.memory_imbalance for solution in solved]
    return Findings(_rows(data), _claims(data), data)


def task(seed: int, models: int, parts: int) -> Subclusters:
    chance = stream(seed, "subclusters")
    names = zoo.models(GPU)
    sizes = {name: int(chance.integers(20, 600)) * MIB for name in names}
    members = []
    for number in range(models):
        name = names[int(chance.integers(len(names)))]
        members.append(Member(f"{name}-{number}", float(chance.exponential(MEAN_RATE)), sizes[name]))
    return Subclusters(tuple(members), parts)


def _solved(problem: Subclusters, draws: int, seed: int, effort: Effort) -> Solution:
    effort.say(f"configuration {seed}")
    began = time.process_time()
    program = divide(problem)
    took = time.process_time() - began
    chance = random_search(problem, draws, stream(seed, "random search"))
    assert chance is not None  # nothing is limited
    return Solution(program, chance, took)


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = [
        Row(f"imbalance of {what}, {how}: the median", 100 * median(data[what][how]), unit="%")
        for what in ("load", "memory")
        for how in (PROGRAM, CHANCE)
    ]
    slowest = max(data["cpu_s"])
    rows.append(Row("CPU of the slowest division", slowest, (0.0, LIMIT_S), "s", 0.0, MACHINE))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    worst = {what: max(data[what][PROGRAM]) for what in ("load", "memory")}
    best = {what: min(data[what][CHANCE]) for what in ("load", "memory")}
    note = "; ".join(
        f"{what}: at most {100 * worst[what]:.2f} %, by chance at least {100 * best[what]:.0f} %"
        for what in worst
    )
    return [
        Claim("the program's partitions are balanced", max(worst.values()) < 0.05, note),
        Claim(
            "they are significantly better than any that chance finds",
            all(worst[what] < 0.5 * best[what] for what in worst),
            note,
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2, 4.5)
    for axis, what in zip(axes, ("load", "memory"), strict=True):
        for how, imbalances in data[what].items():
            ordered = sorted(100 * imbalance for imbalance in imbalances)
            shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
            axis.step([ordered[0], *ordered], [0, *shares], where="post", color=COLORS[how], label=how)
        axis.set(xlabel=f"imbalance of {what} (%)", ylabel="share of configurations", xscale="log")
    axes[0].legend()
    save(figure, path)
