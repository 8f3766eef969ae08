"""What a scenario of apps on a cluster is made of: machines, apps, slowdowns, changes and costs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from astrarium.cluster.live import limits
from astrarium.cluster.scenario.calendar import Moment
from astrarium.cluster.teams import DAY
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Duration, check_above_zero, write_duration

Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Gpus = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Times = Annotated[float, msgspec.Meta(ge=1, le=1000)]
Priority = Annotated[int, msgspec.Meta(ge=-1000, le=1000)]
Factor = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Spread = Annotated[float, msgspec.Meta(ge=0, lt=1)]

_OF_ALIKE = ("gpus", "most", "length", "expected", "spread", "budget", "jobs")
_TIMES = ("length", "expected", "budget")


class MachineKind(msgspec.Struct, frozen=True):
    """*count* machines, in one *rack* or dealt to so many *racks* in turn. *slot*: GPUs that are closest."""

    gpus: Gpus
    count: Count = 1
    rack: Number | None = None
    racks: Count | None = None
    slot: Number = 0
    network: str = ""

    def __post_init__(self) -> None:
        if self.rack is not None and self.racks is not None:
            raise InputError(
                "racks", self.racks, "either rack, which all of them are in, or a number of racks"
            )
        if self.slot and self.gpus % self.slot:
            raise InputError("slot", self.slot, f"a part of {self.gpus} GPUs, or 0 for all of them")


def check_name(field: str, text: str) -> None:
    """Refuse a name that is too long for that of a file, or would steer a terminal."""
    if not text.isprintable() or len(text.encode("utf-8", "replace")) > limits.LONGEST_NAME:
        raise InputError(field, text, f"text of at most {limits.LONGEST_NAME} bytes, without line breaks")


class PhaseJob(msgspec.Struct, frozen=True):
    """*count* jobs alike: each takes *length* on *gpus* GPUs, needs them at once and can use up to *most*."""

    length: Duration
    gpus: Gpus = 1
    most: Gpus | None = None
    count: Count = 1
    expected: Duration | None = None
    iterations: Number = 0
    model: str | None = None

    def __post_init__(self) -> None:
        check_job(self.gpus, self.most, self.length, self.expected)
        check_name("model", self.model or "")


class AppEntry(msgspec.Struct, frozen=True):
    """*count* apps, *every* so long: NAME, or NAME-0, NAME-1, ... where there are several.

    *jobs* of them alike run side by side, or *phases* say all; `halving` has a *budget* of GPU time instead
    of a *length*, and ends with one of its jobs. *spread*: lengths differ by up to so much either way.
    """

    name: str
    kind: Literal["jobs", "halving", "curve"] = "jobs"
    team: str = ""
    model: str = ""
    arrival: Duration = Duration(0)
    count: Count = 1
    every: Duration = Duration(0)
    jobs: Count = 1
    gpus: Gpus = 1
    most: Gpus | None = None
    length: Duration | None = None
    expected: Duration | None = None
    spread: Spread = 0.0
    budget: Duration | None = None
    phases: tuple[tuple[PhaseJob, ...], ...] | None = None
    priority: Priority = 0
    min_run: Duration = Duration(0)
    max_run: Duration = Duration(0)

    def __post_init__(self) -> None:
        self._check_names()
        if self.every and self.count == 1:
            expected = "a count of several apps with it, such as count: 3"
            raise InputError("every", write_duration(self.every), expected)
        if self.max_run and self.max_run < self.min_run:
            expected = f"at least min_run, {write_duration(self.min_run)}, or 0s for no end"
            raise InputError("max_run", write_duration(self.max_run), expected)
        if self.phases is not None:
            self._check_phases()
        elif self.kind == "halving":
            self._check_halving()
        else:
            self._check_alike()

    def _check_names(self) -> None:
        name = self.name
        if not name.strip() or name in (".", "..") or "/" in name or not name.isprintable():
            expected = "text that could name a file: not empty, without / and line breaks, and not . or .."
            raise InputError("name", name, expected)
        for field, text in (("name", name), ("team", self.team), ("model", self.model)):
            check_name(field, text)

    @property
    def jobs_in_all(self) -> int:
        """Return the jobs of all copies and phases."""
        phases = self.phases or ()
        return self.count * (sum(job.count for phase in phases for job in phase) or self.jobs)

    @property
    def shares(self) -> bool:
        """Return whether the app asks for something that only rules for teams know."""
        return bool(self.priority or self.min_run or self.max_run)

    @property
    def names(self) -> list[str]:
        return [self.name] if self.count == 1 else [f"{self.name}-{place}" for place in range(self.count)]

    def _check_phases(self) -> None:
        for name in _OF_ALIKE:
            if getattr(self, name) != _DEFAULTS[name]:
                raise InputError(name, self._shown(name), "nothing here: phases say it")
        if not self.phases or not all(self.phases):
            raise InputError("phases", None, "at least one phase, each with at least one job")

    def _check_halving(self) -> None:
        if self.jobs < 2 or self.jobs & (self.jobs - 1):
            raise InputError("jobs", self.jobs, "2, 4, 8, ... jobs to begin with: halving ends with one")
        if not self.budget:
            expected = "GPU time of all phases together, such as 8h: halving has a budget"
            raise InputError("budget", self._shown("budget"), expected)
        self._refuse("length", "nothing here: the budget of halving says how long its jobs are")
        self._refuse("expected", "a curve: only its owner does not know how long jobs take")
        check_job(self.gpus, self.most, self.budget, None)

    def _check_alike(self) -> None:
        self._refuse("budget", "kind: halving, which has one; other jobs have a length")
        if self.kind != "curve":
            self._refuse("expected", "kind: curve: of other jobs the length is known")
        if self.length is None:
            raise InputError("length", None, "how long a job takes on its GPUs, such as 30min (or phases)")
        check_job(self.gpus, self.most, self.length, self.expected)

    def _refuse(self, name: str, expected: str) -> None:
        if getattr(self, name) is not None:
            raise InputError(name, self._shown(name), expected)

    def _shown(self, name: str) -> object:
        value = getattr(self, name)
        return write_duration(value) if name in _TIMES and value is not None else value


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(AppEntry)}


def check_job(gpus: int, most: int | None, length: Duration, expected: Duration | None) -> None:
    if not length or expected == 0:
        raise InputError("length" if not length else "expected", "0s", "a duration above 0")
    if most is not None and most < gpus:
        raise InputError("most", most, f"at least {gpus}, the GPUs that it needs")


class ThemisApps(msgspec.Struct, frozen=True):
    """Apps drawn as those of Themis: workload 1 (sweeps) or 2 (successive halving).

    They are as long together as *gpu_hours*, and come so that *load* GPUs keep up. *sweeps*: a trace of
    Philly whose bursts they are taken from.
    """

    themis: Annotated[int, msgspec.Meta(ge=1, le=2)]
    count: Count = 85
    gpu_hours: Factor = 1000.0
    load: Factor = 50.0
    network_share: Share | None = None
    network: Literal["k80", "p100", "v100", "fast"] = "k80"
    sweeps: str | None = None


class TraceApps(msgspec.Struct, frozen=True):
    """Every job of a trace file is an app; *first* so many of those with at most *largest* GPUs.

    Jobs are *work* times as long, and come *arrivals* times as late, as in the file.
    """

    trace: str
    format: Literal["philly", "shockwave", "tiresias"]
    first: Count | None = None
    largest: Gpus | None = None
    work: Factor = 1.0
    arrivals: Factor = 1.0


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """How many times longer an iteration takes over slots of a machine, machines of a rack, and racks."""

    machine: Times = 1.0
    rack: Times = 1.1
    cluster: Times = 1.3


class ModelSlowdown(Unknown, frozen=True, kw_only=True):
    model: str
    network: str = ""


class SlowdownSection(msgspec.Struct, frozen=True):
    """*table* to begin with, *models* besides; *others* for models that neither has.

    *told*: policies know them from the start; otherwise they learn them from how jobs run.
    """

    table: Literal["none", "themis"] = "none"
    models: tuple[ModelSlowdown, ...] = ()
    others: Unknown = Unknown()
    told: bool = True


class Costs(msgspec.Struct, frozen=True):
    """A run begins with *startup*, in which nothing is done. Who is on a machine that dies loses what was
    done since its last checkpoint; *checkpoints* are so far apart (0: nothing is lost)."""

    startup: Duration = Duration(0)
    checkpoints: Duration = Duration(0)


class GpuPlace(msgspec.Struct, frozen=True):
    """A GPU, as its machine counts from 0, and the number of that machine."""

    machine: Number
    gpu: Number


class ReservationEntry(msgspec.Struct, frozen=True):
    """GPUs for a team from *start* to *end*, and again *every* so long; days of the week come every week."""

    team: str
    gpus: Gpus
    start: Moment
    end: Moment
    every: Duration = Duration(0)


class SharingSection(msgspec.Struct, frozen=True):
    """What was borrowed is half forgotten after *half_life*; a borrower keeps GPUs for a *turn* at least. A
    simulated run *starts* at this date."""

    half_life: Duration = Duration(7 * DAY)
    turn: Duration = Duration(600 * SECOND)
    starts: Moment | None = None

    def __post_init__(self) -> None:
        for name in ("half_life", "turn"):
            check_above_zero(name, getattr(self, name))
        if self.starts is not None and self.starts.date is None:
            raise InputError("starts", self.starts.text, "a date such as 2026-11-23 8:00")


class Change(msgspec.Struct, frozen=True):
    """At an instant, a machine dies (its number, counted from 0 in the order of machines) or others join; or
    a GPU fails, or is repaired."""

    at: Duration
    lose: Number | None = None
    join: MachineKind | None = None
    fail: GpuPlace | None = None
    repair: GpuPlace | None = None

    def __post_init__(self) -> None:
        if sum(change is not None for change in (self.lose, self.join, self.fail, self.repair)) != 1:
            expected = (
                "one of: the number of a machine to lose, machines that join, a GPU to fail or to repair"
            )
            raise InputError("lose", self.lose, expected)
