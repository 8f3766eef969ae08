"""Traces of cluster jobs are CSV files with a header; other columns may stand there too.

- Philly: `vc,job,arrival_s,num_gpus,duration_s`. Each virtual cluster counts from its own first job.
- Shockwave: `job,arrival_s,num_gpus,model,batch_size,mode,total_steps,num_epochs,exclusive_runtime_s`, and
  `nominal_duration_s` where it is known.
- Tiresias: `job_id,num_gpu,submit_time,iterations,model_name,duration`, in seconds.
- Gavel: `gpu_type,model,batch_size,num_gpus,steps_per_s_1gpu,steps_per_s_consolidated,
  steps_per_s_unconsolidated`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.units import SECOND, Time

LONGEST_DAYS = 3650
MODES = ["static", "accordion", "gns"]


class PhillyJob(msgspec.Struct, frozen=True):
    """A job of the Philly trace. *arrival* counts from the first job of its virtual cluster, *duration* is
    that of all attempts."""

    vc: str
    job: int
    arrival: Time
    gpus: int
    duration: Time

    model = ""
    iterations = 1
    expected = None

    @property
    def name(self) -> str:
        return f"{self.vc}/{self.job}"

    @property
    def team(self) -> str:
        return self.vc


class ShockwaveJob(msgspec.Struct, frozen=True):
    """A job of Shockwave's traces. *duration*: alone on its GPUs, with all changes of the batch size.
    *expected*: without them, which is what its owner says, and what schedulers are told."""

    job: int
    arrival: Time
    gpus: int
    model: str
    batch: int
    mode: str
    steps: int
    epochs: int
    duration: Time
    expected: Time | None = None

    team = ""

    @property
    def name(self) -> str:
        return f"job {self.job}"

    @property
    def iterations(self) -> int:
        """Return the epochs of the job: steps change in length with the batch size."""
        return self.epochs


class TiresiasJob(msgspec.Struct, frozen=True):
    job: int
    gpus: int
    arrival: Time
    iterations: int
    model: str
    duration: Time

    team = ""
    expected = None

    @property
    def name(self) -> str:
        return f"job {self.job}"


class GavelRates(msgspec.Struct, frozen=True):
    """The steps a second of a model: on one GPU, on GPUs of one server, and on several servers."""

    gpu: str
    model: str
    batch: int
    gpus: int
    alone: float
    together: float
    spread: float

    @property
    def slowdown(self) -> float:
        """Return how much slower the model is over several servers. Less than 1 is noise."""
        return max(1.0, self.together / self.spread)


def read_philly(path: str | Path) -> list[PhillyJob]:
    columns = {"vc": _text, "job": _count(0), "arrival_s": _seconds, "num_gpus": _count(1)}
    return _read(path, PhillyJob, {**columns, "duration_s": _duration}, per="vc")


def read_shockwave(path: str | Path) -> list[ShockwaveJob]:
    columns = {
        "job": _count(0),
        "arrival_s": _seconds,
        "num_gpus": _count(1),
        "model": _text,
        "batch_size": _count(1),
        "mode": _mode,
        "total_steps": _count(1),
        "num_epochs": _count(1),
        "exclusive_runtime_s": _duration,
    }
    return _read(path, ShockwaveJob, columns, may_have={"nominal_duration_s": _duration})


def read_tiresias(path: str | Path) -> list[TiresiasJob]:
    columns = {
        "job_id": _count(0),
        "num_gpu": _count(1),
        "submit_time": _seconds,
        "iterations": _count(1),
        "model_name": _text,
        "duration": _duration,
    }
    return _read(path, TiresiasJob, columns)


def read_gavel(path: str | Path) -> list[GavelRates]:
    columns = {"gpu_type": _text, "model": _text, "batch_size": _count(1), "num_gpus": _count(1)}
    rates = ["steps_per_s_1gpu", "steps_per_s_consolidated", "steps_per_s_unconsolidated"]
    return _read(path, GavelRates, {**columns, **dict.fromkeys(rates, _rate)})


Row = TypeVar("Row")
Cell = Callable[[str], Any]  # raises ValueError that says what is expected


def _read(
    path: str | Path,
    row: Callable[..., Row],
    columns: Mapping[str, Cell],
    per: str = "",
    may_have: Mapping[str, Cell] = {},
) -> list[Row]:
    """Return one row for each line; columns stand in the order of the fields, and those that the file
    *may_have* after the others. Arrivals rise for each *per*."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        rows = _rows(text.splitlines(), row, columns, may_have)
        _check_order(rows, per)
        return [made for _, made in rows]
    except OSError as error:
        raise InputError("", None, f"a trace file that can be read: {error.strerror}", str(path)) from None
    except UnicodeDecodeError:
        raise InputError("", None, "a text file in UTF-8", str(path)) from None
    except InputError as error:
        raise error.read_from(str(path)) from None


def _rows(
    lines: Iterable[str], row: Callable[..., Row], columns: Mapping[str, Cell], may_have: Mapping[str, Cell]
) -> list[tuple[int, Row]]:
    """Return the rows with the numbers of their lines."""
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in columns if name not in header]
    if missing:
        expected = f"a header with {','.join(columns)} (missing: {', '.join(missing)})"
        raise InputError("line 1", ",".join(header), expected)
    columns = {**columns, **{name: cell for name, cell in may_have.items() if name in header}}
    places = {name: header.index(name) for name in columns}
    found = []
    for cells in filter(None, reader):
        if len(cells) != len(header):
            line = f"line {reader.line_num}"
            raise InputError(line, ",".join(cells), f"{len(header)} cells: {','.join(header)}")
        values = (_cell(cells[place], columns[name], reader.line_num, name) for name, place in places.items())
        found.append((reader.line_num, row(*values)))
    if not found:
        raise InputError("", None, "at least one row")
    return found


def _check_order(rows: list[tuple[int, Row]], per: str) -> None:
    last: dict[object, Time] = {}
    for line, row in rows:
        group, arrival = getattr(row, per, ""), getattr(row, "arrival", 0)
        if arrival < last.get(group, 0):
            expected = "times in rising order: sort the trace"
            raise InputError(f"line {line}", arrival / SECOND, expected)
        last[group] = arrival


def _cell(raw: str, convert: Cell, line: int, column: str) -> Any:
    try:
        return convert(raw.strip())
    except ValueError as error:
        raise InputError(f"line {line}, {column}", raw, str(error)) from None


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
    seconds = _decimal(raw)
    if seconds is None or not 0 <= seconds <= LONGEST_DAYS * 86_400:
        raise ValueError(f"seconds, at least 0 and at most {LONGEST_DAYS} days")
    return round(seconds * SECOND)


def _duration(raw: str) -> Time:
    if (time := _seconds(raw)) == 0:
        raise ValueError("seconds above 0")
    return time


def _rate(raw: str) -> float:
    rate = _decimal(raw)
    if rate is None or rate <= 0:
        raise ValueError("a number above 0")
    return float(rate)


def _decimal(raw: str) -> Decimal | None:
    try:
        number = Decimal(raw)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
