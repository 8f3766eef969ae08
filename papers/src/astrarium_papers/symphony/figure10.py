"""Figure 10: how few GPUs serve 15,000 requests/s within the objectives of all models."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from astrarium.serving import zoo
from astrarium.serving.goodput import ALLOWED_BAD, shares, worst_bad
from astrarium.serving.scenario import Scenario, build
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony._settings import DELAYS, FAULTY_SHEPHERD, SYSTEMS, WITH_FAULT, scenario

TITLE = "GPUs that 15,000 requests/s need, A100 (Figure 10)"
ONE = "one ResNet50, 25 ms"
MIXED = "mixed, 37 models"
FAULTY = "Shepherd, faulty"  # as the authors built it
DELAYED = "delayed"  # with the network delays that the authors' code allows for
RATE = 15000
HEADROOM = 2
COARSE = 16  # steps down from the most GPUs worth trying


def run(effort: Effort) -> Findings:
    cases = [
        (workload, system, delayed)
        for workload in (ONE, MIXED)
        for system in SYSTEMS
        for delayed in (False, True)
    ]
    needed = effort.map(lambda case: _needed(*case, effort), cases)
    data: dict[str, Any] = {ONE: {}, MIXED: {}, DELAYED: {ONE: {}, MIXED: {}}}
    data[FAULTY] = {workload: _needed(workload, FAULTY, False, effort) for workload in (ONE, MIXED)}
    for (workload, system, delayed), gpus in zip(cases, needed, strict=True):
        (data[DELAYED] if delayed else data)[workload][system] = gpus
    rows = _one_rows(data[ONE], data[DELAYED][ONE]) + _mixed_rows(data[MIXED], data[DELAYED][MIXED])
    return Findings([_with_fault(row, data[FAULTY]) for row in rows], _claims(data), data)


def _with_fault(row: Row, faulty: dict[str, Any]) -> Row:
    """Return the row of Shepherd with what it needs as the authors built it."""
    if not row.what.endswith("Shepherd"):
        return row
    gpus = faulty[ONE if row.what.startswith(ONE) else MIXED]
    return replace(row, note=f"{row.note}; {gpus or 'more than were tried'} GPUs {WITH_FAULT}")


def _needed(workload: str, system: str, delayed: bool, effort: Effort) -> int | None:
    """Return the GPUs needed; None where even the most GPUs worth trying are too few."""
    effort.say(f"{workload}: {system}{', delayed' * delayed}")
    numbers = effort.pick((1,), (1, 2))
    cases = [_scenario(workload, system, delayed, effort).with_seed(number) for number in numbers]

    def enough(gpus: int) -> bool:
        return all(worst_bad(_on(case, gpus)) <= ALLOWED_BAD for case in cases)

    return fewest(enough, most(cases[0]))


def _scenario(workload: str, system: str, delayed: bool, effort: Effort) -> Scenario:
    models: dict[str, Any] = {"ResNet50": {"profile": "zoo:A100/ResNet50", "slo": "25ms"}}
    if workload == MIXED:
        names = zoo.models("A100")[:: effort.pick(9, 1)]
        models = {name: {"profile": f"zoo:A100/{name}"} for name in names}
    rate = effort.pick(1000, RATE)
    seconds, warmup = effort.pick((0.3, 0.1), (10, 2))
    network = DELAYS if delayed else {}
    policy = FAULTY_SHEPHERD if system == FAULTY else SYSTEMS[system]
    return scenario(models, 1, policy, seconds, rate, warmup, network=network)


def _on(case: Scenario, gpus: int) -> Scenario:
    return replace(case, cluster=replace(case.cluster, gpus=gpus))


def most(case: Scenario) -> int:
    """Return twice as many GPUs as would do if nothing were ever batched."""
    models = build.setup(case).models
    alone = sum(share * model.latency[1] / 1e9 for share, model in zip(shares(case), models, strict=True))
    return math.ceil(case.total_rate * alone * HEADROOM)


def fewest(enough: Callable[[int], bool], most: int) -> int | None:
    """Return the fewest GPUs that do, by coarse steps down until the first number that is too small, then
    halving: some policies fail with a number of GPUs, do with fewer, and fail again, so a number counts only
    if all that were tried above it do."""
    step = max(1, most // COARSE)
    if not enough(most):
        return None
    good = most
    bad = most - step
    while bad > 0 and enough(bad):
        good = bad
        bad = bad - step
    bad = max(bad, 0)
    while good - bad > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if enough(middle) else (good, middle)
    return good


def _one_rows(needed: dict[str, Any], delayed: dict[str, Any]) -> list[Row]:
    rows = [Row(f"{ONE}: Symphony", needed["Symphony"], unit="GPUs", note=_note(needed, delayed, "Symphony"))]
    for rival in ("Shepherd", "Nexus"):
        if needed[rival]:
            more = needed[rival] - needed["Symphony"]
            note = _note(needed, delayed, rival)
            rows.append(Row(f"{ONE}: how many more, {rival}", more, (2, 6), "GPUs", 0, note))
    return rows


def _mixed_rows(needed: dict[str, Any], delayed: dict[str, Any]) -> list[Row]:
    note = _note(needed, delayed, "Symphony")
    rows = [Row(f"{MIXED}: Symphony", needed["Symphony"], unit="GPUs", note=note)]
    for rival, paper in (("Nexus", 1.66), ("Shepherd", 0.90)):
        if needed[rival]:
            more = needed[rival] / needed["Symphony"] - 1
            note = _note(needed, delayed, rival)
            rows.append(Row(f"{MIXED}: more by this share, {rival}", more, paper, tolerance=0.1, note=note))
    return rows


def _note(needed: dict[str, Any], delayed: dict[str, Any], system: str) -> str:
    """The paper's emulated cluster had a real network; ours has none unless we add one."""
    then = delayed[system]
    symphony = delayed["Symphony"]
    note = f"with the network delays of the authors' code {then or 'more'}"
    if system == "Symphony" or not then:
        return note
    return f"{needed[system]} GPUs; {note} to Symphony's {symphony}: {then / symphony - 1:.0%} more"


def _claims(data: dict[str, Any]) -> list[Claim]:
    with_one = {system: gpus or math.inf for system, gpus in data[ONE].items()}
    others = max(gpus for system, gpus in with_one.items() if system != "Clockwork")
    return [
        Claim(
            "Symphony needs the fewest GPUs",
            all(
                data[workload]["Symphony"] <= min(gpus or math.inf for gpus in data[workload].values())
                for workload in (ONE, MIXED)
            ),
        ),
        Claim(
            "with one model, Clockwork needs more than double the GPUs of the other three",
            with_one["Clockwork"] > 2 * others,
            f"{_gpus(data[ONE]['Clockwork'])}; the most that another needs is {others:g}",
        ),
        Claim(
            "Clockwork cannot deliver 15,000 requests/s of mixed models",
            data[MIXED]["Clockwork"] is None,
            "the paper's reason is the time its scheduler takes, which is not simulated: with decisions that "
            f"take no time, {_gpus(data[MIXED]['Clockwork'])}",
        ),
    ]


def _gpus(needed: int | None) -> str:
    return f"it needs {needed}" if needed else "no number that we tried was enough"


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import SYSTEM_COLORS, axes_row, save

    figure, axes = axes_row(2, 4.5)
    for axis, workload in zip(axes, (ONE, MIXED), strict=True):
        needed = data[workload]
        names = list(needed)
        heights = [needed[name] or 0 for name in names]
        bars = axis.bar(names, heights, 0.6, color=[SYSTEM_COLORS[name] for name in names])
        axis.bar_label(bars, [str(height) if height else "cannot" for height in heights], padding=2)
        axis.set(title=workload, ylabel="GPUs needed")
        axis.margins(y=0.12)
    save(figure, path)
