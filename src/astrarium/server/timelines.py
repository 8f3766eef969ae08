"""Timelines show where the last calls spent their time, as a trace that ui.perfetto.dev opens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec

from astrarium.core.quantities import MICROSECOND, Time
from astrarium.run.timeline import Entry, process, slice_of, timeline
from astrarium.server.contract import Stages
from astrarium.server.stage_line import BETWEEN

KEPT = 5_000
# process numbers in the trace
_GPUS = 1
_CALLS = 2


class AnsweredCall(NamedTuple):
    """A call is kept like this once its client has the answer; *number* counts such calls."""

    number: int
    model: str
    gpu: int
    batch: int
    batch_size: int
    in_time: bool
    stages: Stages


class Timelines:
    """Timelines keep the last calls; older ones are forgotten."""

    def __init__(self, kept: int = KEPT) -> None:
        self._passed: deque[AnsweredCall] = deque(maxlen=kept)
        self._count = 0

    def add(self, model: str, gpu: int, batch: int, size: int, in_time: bool, stages: Stages) -> None:
        self._count += 1
        self._passed.append(AnsweredCall(self._count, model, gpu, batch, size, in_time, stages))

    def trace(self, last: int) -> bytes:
        # In one step, since calls are added while another thread is here.
        shown = list(self._passed)[-last:] if last > 0 else []
        events = [*_names(shown), *_batches(shown), *(event for call in shown for event in _call(call))]
        meta = {"calls_answered": self._count, "calls_shown": len(shown)}
        return msgspec.json.encode(timeline(events, meta))


def _names(shown: list[AnsweredCall]) -> Iterator[Entry]:
    yield from (process(_GPUS, "GPUs"), process(_CALLS, "Calls"))
    for gpu in sorted({call.gpu for call in shown}):
        thread = {"ph": "M", "pid": _GPUS, "tid": gpu, "name": "thread_name"}
        yield {**thread, "args": {"name": f"GPU {gpu}"}}


def _batches(shown: list[AnsweredCall]) -> Iterator[Entry]:
    for call in {call.batch: call for call in shown}.values():
        begin = call.stages.started
        end = call.stages.finished
        name = f"{call.model} ×{call.batch_size}"
        yield slice_of(name, _GPUS, call.gpu, begin, max(begin, end), cat=call.model)


def _call(call: AnsweredCall) -> Iterator[Entry]:
    """Return an outer slice for the call and inner ones for its stages, asynchronous since calls overlap."""
    about = {"in_time": call.in_time, "gpu": call.gpu, "batch": call.batch, "batch_size": call.batch_size}
    stages = call.stages
    yield from _slice(call, call.model, stages.received, stages.answered, about)
    for name, (begin, end) in zip(BETWEEN, pairwise(stages), strict=True):
        yield from _slice(call, name, begin, max(begin, end), {})


def _slice(call: AnsweredCall, name: str, begin: Time, end: Time, about: Entry) -> Iterator[Entry]:
    track = {"cat": call.model, "id": call.number, "pid": _CALLS, "tid": 0, "name": name}
    yield {**track, "ph": "b", "ts": begin / MICROSECOND, "args": about}
    yield {**track, "ph": "e", "ts": end / MICROSECOND}
