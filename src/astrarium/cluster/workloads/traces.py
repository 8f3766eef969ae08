"""A trace of cluster jobs is a CSV file with a header, in one of several formats.

Other columns than those of the format may stand there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from astrarium.core.errors import InputError, one_of, read_from
from astrarium.core.plain_data import csv_rows, read_text
from astrarium.core.quantities import SECOND, Time

LONGEST_DAYS = 3650
MODES = ["static", "accordion", "gns"]


class TraceJob(msgspec.Struct, frozen=True):
    """A job of a trace took *duration* on all of its *gpus*, all attempts included. Schedulers are told what
    its owner *expected*, where that was another time. *arrival* counts from the first job of its *team*."""

    name: str
    arrival: Time
    gpus: int
    duration: Time
    team: str = ""
    model: str = ""
    iterations: int = 1
    expected: Time | None = None


def _text(raw: str) -> str:
    if not raw:
        raise ValueError("a name")
    return raw


def _mode(raw: str) -> str:
    if raw not in MODES:
        raise ValueError(one_of(MODES, raw))
    return raw


def _count(least: int) -> Cell:
    def whole(raw: str) -> int:
        if not (raw.isascii() and raw.isdigit()) or int(raw) < least:
            raise ValueError(f"a whole number of at least {least}")
        return int(raw)

    return whole


def _seconds(raw: str) -> Time:
    try:
        seconds = Decimal(raw)
    except InvalidOperation:
        seconds = Decimal(-1)
    if not (seconds.is_finite() and 0 <= seconds <= LONGEST_DAYS * 86_400):
        raise ValueError(f"seconds, at least 0 and at most {LONGEST_DAYS} days")
    return round(seconds * SECOND)


def _duration(raw: str) -> Time:
    if (time := _seconds(raw)) == 0:
        raise ValueError("seconds above 0")
    return time


Cell = Callable[[str], Any]  # raises ValueError that says what is expected


class TraceFormat(NamedTuple):
    """A format has columns, each with the field of a job that it fills and how its cells are read. *name*
    makes a job's name of its fields. Columns without a field of `TraceJob` are only checked."""

    name: str
    columns: Mapping[str, tuple[str, Cell]]
    may_have: Mapping[str, tuple[str, Cell]] = {}


FORMATS = {
    "philly": TraceFormat(
        "{team}/{job}",  # a team is a virtual cluster
        {
            "vc": ("team", _text),
            "job": ("job", _count(0)),
            "arrival_s": ("arrival", _seconds),
            "num_gpus": ("gpus", _count(1)),
            "duration_s": ("duration", _duration),
        },
    ),
    # Its jobs took so long alone on their GPUs with all changes of the batch size, and were expected to take
    # as long as without any. Iterations are epochs: steps change in length with the batch size.
    "shockwave": TraceFormat(
        "job {job}",
        {
            "job": ("job", _count(0)),
            "arrival_s": ("arrival", _seconds),
            "num_gpus": ("gpus", _count(1)),
            "model": ("model", _text),
            "batch_size": ("batch", _count(1)),
            "mode": ("mode", _mode),
            "total_steps": ("steps", _count(1)),
            "num_epochs": ("iterations", _count(1)),
            "exclusive_runtime_s": ("duration", _duration),
        },
        may_have={"nominal_duration_s": ("expected", _duration)},
    ),
    "tiresias": TraceFormat(
        "job {job}",
        {
            "job_id": ("job", _count(0)),
            "num_gpu": ("gpus", _count(1)),
            "submit_time": ("arrival", _seconds),
            "iterations": ("iterations", _count(1)),
            "model_name": ("model", _text),
            "duration": ("duration", _duration),
        },
    ),
}


def read_trace(path: str | Path, format: str) -> list[TraceJob]:
    """Return one job for each line of a trace; the arrivals of a team rise."""
    lines = read_text(Path(path), "a trace file").splitlines()
    with read_from(path):
        jobs = dict(_jobs(lines, FORMATS[format]))
        _check_order(jobs)
    return list(jobs.values())


def _jobs(lines: Iterable[str], format: TraceFormat) -> Iterator[tuple[int, TraceJob]]:
    """Yield the jobs with the numbers of their lines."""
    rows = csv_rows(lines)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    missing = [name for name in format.columns if name not in header]
    if missing:
        expected = f"a header with {','.join(format.columns)} (missing: {', '.join(missing)})"
        raise InputError("line 1", ",".join(header), expected)
    for number, cells in rows:
        line = f"line {number}"
        if not cells:
            continue
        if len(cells) != len(header):
            raise InputError(line, ",".join(cells), f"{len(header)} cells: {','.join(header)}")
        yield number, _job(dict(zip(header, cells, strict=True)), format, line)


def _job(cells: Mapping[str, str], format: TraceFormat, line: str) -> TraceJob:
    known = {**format.columns, **format.may_have}
    values = {
        field: _value(cells[name], read, f"{line}, {name}")
        for name, (field, read) in known.items()
        if name in cells
    }
    return msgspec.convert({**values, "name": format.name.format(**values)}, TraceJob)


def _value(raw: str, read: Cell, field: str) -> Any:
    try:
        return read(raw.strip())
    except ValueError as error:
        raise InputError(field, raw, str(error)) from None


def _check_order(jobs: Mapping[int, TraceJob]) -> None:
    if not jobs:
        raise InputError("", None, "at least one row")
    last: dict[str, Time] = {}
    for line, job in jobs.items():
        if job.arrival < last.get(job.team, 0):
            expected = "times in rising order: sort the trace"
            raise InputError(f"line {line}", job.arrival / SECOND, expected)
        last[job.team] = job.arrival
