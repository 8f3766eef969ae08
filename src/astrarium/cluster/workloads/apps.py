"""Workloads draw these apps; a set of them can be described, and made smaller.

The fields carry the names of the cluster level's own structures, so that `msgspec.convert(drawn, App,
from_attributes=True)` makes one of the other.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from statistics import median
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.units import SECOND, Time

# Traces of cluster jobs are CSV files with a header; other columns may stand there too.


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


HOUR: Time = 3600 * SECOND
DAY: Time = 24 * HOUR

Kind = Literal["jobs", "halving", "curve"]


class DrawnJob(msgspec.Struct, frozen=True):
    """A job of a workload. *work*: how long all of its iterations take on one GPU. It runs on *least* to
    *most* GPUs at once. *expected* is the work that its owner says, where that is not the truth.

    Jobs of an app that try the same hyper-parameters in phase after phase have one *configuration*.
    """

    id: int
    work: Time
    least: int
    most: int
    model: str
    iterations: int = 1
    configuration: int = 0
    expected: Time | None = None

    @property
    def iteration(self) -> Time:
        return self.work // self.iterations

    @property
    def task(self) -> Time:
        """Return how long each GPU of the job is busy where it has as few as it can."""
        return self.work // self.least


class DrawnApp(msgspec.Struct, frozen=True):
    """An app of a workload: jobs of a phase run side by side, phases one after another; numbers of jobs do
    not repeat.

    `jobs`: run to their ends. `curve`: a tuner stops jobs by their curves; the work is up to that point.
    `halving`: the jobs of a later phase are the better half of those before.
    """

    id: int
    name: str
    arrival: Time
    phases: tuple[tuple[DrawnJob, ...], ...]
    kind: Kind = "jobs"
    team: str = ""

    @property
    def jobs(self) -> tuple[DrawnJob, ...]:
        return tuple(job for phase in self.phases for job in phase)

    @property
    def work(self) -> Time:
        return sum(job.work for job in self.jobs)

    @property
    def model(self) -> str:
        return self.phases[0][0].model

    @property
    def demand(self) -> int:
        """Return the GPUs that the app can use at once."""
        return max(sum(job.most for job in phase) for phase in self.phases)


class Facts(msgspec.Struct, frozen=True):
    """What papers say of workloads. *load*: mean GPUs it takes to keep up from first arrival to last."""

    apps: int
    jobs: int
    single_share: float
    median_jobs: float
    median_task_hours: float
    median_app_gpu_days: float
    gpu_hours: float
    span_hours: float
    load: float


def facts(apps: Sequence[DrawnApp]) -> Facts:
    """Return the facts about a set of apps; jobs are counted as submitted, those of the first phase."""
    counts = [len(app.phases[0]) for app in apps]
    tasks = [job.task for app in apps for job in app.jobs for _ in range(job.least)]
    total, span = sum(app.work for app in apps), _span(apps)
    return Facts(
        apps=len(apps),
        jobs=sum(counts),
        single_share=counts.count(1) / len(apps),
        median_jobs=median(counts),
        median_task_hours=median(tasks) / HOUR,
        median_app_gpu_days=median(app.work for app in apps) / DAY,
        gpu_hours=total / HOUR,
        span_hours=span / HOUR,
        load=total / span if span else float("inf"),
    )


def stretched(apps: Iterable[DrawnApp], work: float, arrivals: float) -> tuple[DrawnApp, ...]:
    """Return apps with iterations *work* times as long, which come *arrivals* times as late."""
    if min(work, arrivals) <= 0:
        raise InputError("work" if work <= 0 else "arrivals", min(work, arrivals), "a factor above 0")
    return tuple(
        msgspec.structs.replace(
            app,
            arrival=round(app.arrival * arrivals),
            phases=tuple(tuple(_longer(job, work) for job in phase) for phase in app.phases),
        )
        for app in apps
    )


def scaled(
    apps: Sequence[DrawnApp], gpu_hours: float = 1000.0, load: float | None = 50.0
) -> tuple[DrawnApp, ...]:
    """Return the apps with *gpu_hours* of work in all, over such a time that *load* GPUs keep up with it.

    With no *load*, arrivals move closer by the same factor as work gets less: the load stays as drawn.
    """
    total = sum(app.work for app in apps)
    factor = gpu_hours * HOUR / total
    if load is None or not _span(apps):
        return stretched(apps, factor, factor)
    if load <= 0:
        raise InputError("load", load, "a number of GPUs above 0")
    return stretched(apps, factor, gpu_hours * HOUR / load / _span(apps))


def _longer(job: DrawnJob, factor: float) -> DrawnJob:
    """Return the job with longer iterations, in whole nanoseconds, so that work stays a multiple of them."""
    expected = None if job.expected is None else max(1, round(job.expected * factor))
    work = job.iterations * max(1, round(job.iteration * factor))
    return msgspec.structs.replace(job, work=work, expected=expected)


def _span(apps: Sequence[DrawnApp]) -> Time:
    if not apps:
        raise InputError("apps", None, "at least one app")
    arrivals = [app.arrival for app in apps]
    return max(arrivals) - min(arrivals)


class RecordedJob(Protocol):
    """A row of a trace of jobs: *duration* on all of its *gpus*, or what its owner *expected*."""

    @property
    def name(self) -> str: ...
    @property
    def arrival(self) -> Time: ...
    @property
    def gpus(self) -> int: ...
    @property
    def duration(self) -> Time: ...
    @property
    def model(self) -> str: ...
    @property
    def team(self) -> str: ...
    @property
    def iterations(self) -> int: ...
    @property
    def expected(self) -> Time | None: ...


def single_apps(rows: Iterable[RecordedJob]) -> tuple[DrawnApp, ...]:
    """Return each job as an app of its own that needs all of its GPUs at once, in order of arrival."""
    ordered = sorted(rows, key=lambda row: row.arrival)
    return tuple(
        DrawnApp(id_, row.name, row.arrival, ((_gang(row),),), team=row.team)
        for id_, row in enumerate(ordered)
    )


def _gang(row: RecordedJob) -> DrawnJob:
    expected = None if row.expected is None else row.expected * row.gpus
    work = row.duration * row.gpus
    return DrawnJob(0, work, row.gpus, row.gpus, row.model, row.iterations, expected=expected)
