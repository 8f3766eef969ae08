"""Timelines that chrome://tracing and ui.perfetto.dev open are made here, for every level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.quantities import MICROSECOND, Time

Entry = dict[str, Any]


def timeline(events: Iterable[Entry], metadata: Mapping[str, Any]) -> Entry:
    """Return the whole document. What was left out of a long run stands in *metadata*."""
    return {"traceEvents": list(events), "displayTimeUnit": "ms", "metadata": dict(metadata)}


def write_timeline(path: Path, document: Entry) -> None:
    path.write_bytes(msgspec.json.encode(document))


def process(number: int, name: str) -> Entry:
    return {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}


def thread(process: int, number: int, name: str) -> list[Entry]:
    """Return a track's name, and its place among the others."""
    track = {"ph": "M", "pid": process, "tid": number}
    return [
        {**track, "name": "thread_name", "args": {"name": name}},
        {**track, "name": "thread_sort_index", "args": {"sort_index": number}},
    ]


def slice_of(name: str, process: int, thread: int, start: Time, end: Time, **more: Any) -> Entry:
    """Return a slice of a track, from one instant to another."""
    times = {"ts": start / MICROSECOND, "dur": (end - start) / MICROSECOND}
    return {"ph": "X", "name": name, "pid": process, "tid": thread, **times, **more}


def counter(name: str, process: int, at: Time, values: Mapping[str, float]) -> Entry:
    return {"ph": "C", "name": name, "pid": process, "ts": at / MICROSECOND, "args": dict(values)}
