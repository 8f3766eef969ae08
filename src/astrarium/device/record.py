"""A finished run: who had the GPU when, and the numbers that job schedulers are compared by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from astrarium.core.quantities import Time
from astrarium.core.trace import Step
from astrarium.device.contract import IterationFinished, RunIteration
from astrarium.device.ledger import JobRow, Outcome
from astrarium.device.state import DeviceState


class Span(NamedTuple):
    """Iterations of one job that followed each other in a lane."""

    job: int
    lane: int
    start: Time
    end: Time


@dataclass(frozen=True)
class DeviceRecord:
    policy: str
    memory: int
    rows: list[JobRow]  # in order of arrival
    spans: list[Span]


@dataclass(frozen=True)
class Summary:
    """Over the jobs that finished; times in nanoseconds."""

    finished: int
    makespan: Time
    mean_queueing: float  # from arrival to the first iteration
    mean_completion: float
    p95_completion: float
    mean_admission: float = 0.0  # from arrival to a place on the GPU: what Salus calls queueing


def summary(rows: Iterable[JobRow]) -> Summary:
    ended = [row for row in rows if row.outcome is Outcome.FINISHED]
    if not ended:
        return Summary(0, 0, 0.0, 0.0, 0.0)
    completion = sorted(row.ended - row.arrived for row in ended)
    return Summary(
        finished=len(ended),
        makespan=max(row.ended for row in ended) - min(row.arrived for row in ended),
        mean_queueing=sum(row.started - row.arrived for row in ended) / len(ended),
        mean_completion=sum(completion) / len(ended),
        p95_completion=float(completion[min(len(completion) - 1, round(0.95 * (len(completion) - 1)))]),
        mean_admission=sum(row.admitted - row.arrived for row in ended) / len(ended),
    )


class Spans:
    """Hears every step of a run; a job keeps its span until another one runs in its lane."""

    def __init__(self, state: DeviceState) -> None:
        self._state = state
        self._lanes: dict[int, int] = {}  # by job
        self._open: dict[int, Span] = {}  # by lane
        self._closed: list[Span] = []

    def __call__(self, step: Step) -> None:
        for event in step.events:
            if isinstance(event, IterationFinished) and event.job in self._lanes:
                self._ran(self._lanes[event.job], event.job, event.started, step.now)
        for action in step.actions:
            if isinstance(action, RunIteration):
                lane = self._state.layout.lane_of(action.job)
                assert lane is not None
                self._lanes[action.job] = lane.id

    def _ran(self, lane: int, job: int, start: Time, end: Time) -> None:
        last = self._open.get(lane)
        if last is not None and last.job == job:
            start = last.start
        elif last is not None:
            self._closed.append(last)
        self._open[lane] = Span(job, lane, start, end)

    def in_order(self) -> list[Span]:
        return sorted([*self._closed, *self._open.values()], key=lambda span: (span.start, span.lane))
