"""Which requests of a dynamic model share a line: finish rates on workloads of Orloj's, Orloj beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from astrarium_papers.astrarium._settings import ASTRARIUM
from astrarium_papers.findings import Claim, Effort, Row
from astrarium_papers.orloj import _finish
from astrarium_papers.orloj._settings import SYSTEMS, System
from astrarium_papers.orloj._tables import TABLE_4_1
from astrarium_papers.orloj._workloads import Case, modes, real

GROUPED = "grouped"
LINES = (GROUPED, "application", "model")
ORLOJ = "orloj"
WORKLOADS = ("rdinet-cifar", "blenderbot-convAI", "gpt-cornell")
MULTIPLES = (1.5, 2.0, 3.0)  # of the P99 of single times
REQUESTS = 1000  # measured, in each run
SEEDS = (1, 2, 3)
NEARLY = 0.01

Rates = dict[str, dict[str, list[float]]]  # by workload, then kind of lines or `orloj`, at each multiple


def systems() -> dict[str, System]:
    ours = {kind: System({**ASTRARIUM, "lines": kind}) for kind in LINES}
    return {**ours, ORLOJ: SYSTEMS["Orloj"]}


def finish_rates(effort: Effort) -> Rates:
    cases = [real(entry) for entry in TABLE_4_1 if entry.case in WORKLOADS] + [modes(4)]
    work = [(case, name) for case in cases[: effort.pick(1, None)] for name in systems()]
    by_workload: Rates = {}
    for (case, name), rates in zip(
        work, effort.map(lambda case_and_system: _curve(*case_and_system, effort), work), strict=True
    ):
        by_workload.setdefault(case.title, {})[name] = rates
    return by_workload


def _curve(case: Case, name: str, effort: Effort) -> list[float]:
    effort.say(f"{case.title}: {name}")
    count = effort.pick(100, REQUESTS)
    system = systems()[name]
    settings = [_finish.scenario(case, multiple, system, count) for multiple in MULTIPLES]
    seeds = effort.pick(SEEDS[:1], SEEDS)
    return [mean(_finish.finish_rate(setting.with_seed(seed)) for seed in seeds) for setting in settings]


def rows(by_workload: Rates) -> list[Row]:
    return [
        Row(f"{title}: {called(name)}", mean(rates), unit="finish rate", note=", ".join(_points(rates)))
        for title, curves in by_workload.items()
        for name, rates in curves.items()
    ]


def called(name: str) -> str:
    return f"lines {name}" if name in LINES else name


def _points(rates: Sequence[float]) -> Iterator[str]:
    return (f"{rate:.3f} at {multiple:g} x P99" for multiple, rate in zip(MULTIPLES, rates, strict=True))


def claim(rates: Rates) -> Claim:
    gaps = {title: mean(curves[GROUPED]) - max(map(mean, curves.values())) for title, curves in rates.items()}
    return Claim(
        "lines formed by what they cost finish as many as one line for each, one for all, and Orloj",
        all(gap >= -NEARLY for gap in gaps.values()),
        "; ".join(f"{title}: {gap:+.3f} against the best" for title, gap in gaps.items()),
    )
