"""What a scenario of apps on a cluster is made of: machines, apps, slowdowns, changes and costs."""

from __future__ import annotations

import shlex
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

from astrarium.cluster.live import limits
from astrarium.cluster.live.access import AccessSection
from astrarium.cluster.live.backend import JobCommand, KubernetesOptions, OnStop, Processes
from astrarium.cluster.scenario.calendar import Moment
from astrarium.cluster.teams import DAY
from astrarium.core.decode import Decoder, check_keys
from astrarium.core.errors import InputError
from astrarium.core.quantities import Duration, check_above_zero, write_duration
from astrarium.core.units import MILLISECOND, SECOND

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
            told = "a count of several apps with it, such as count: 3"
            raise InputError("every", write_duration(self.every), told)
        if self.max_run and self.max_run < self.min_run:
            told = f"at least min_run, {write_duration(self.min_run)}, or 0s for no end"
            raise InputError("max_run", write_duration(self.max_run), told)
        if self.phases is not None:
            self._check_phases()
        elif self.kind == "halving":
            self._check_halving()
        else:
            self._check_alike()

    def _check_names(self) -> None:
        name = self.name
        if not name.strip() or name in (".", "..") or "/" in name or not name.isprintable():
            told = "text that could name a file: not empty, without / and line breaks, and not . or .."
            raise InputError("name", name, told)
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
            told = "GPU time of all phases together, such as 8h: halving has a budget"
            raise InputError("budget", self._shown("budget"), told)
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

    def _refuse(self, name: str, told: str) -> None:
        if getattr(self, name) is not None:
            raise InputError(name, self._shown(name), told)

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
        if sum(each is not None for each in (self.lose, self.join, self.fail, self.repair)) != 1:
            told = "one of: the number of a machine to lose, machines that join, a GPU to fail or to repair"
            raise InputError("lose", self.lose, told)


# What only a live cluster needs: the commands of apps, and the section `live`.


Retries = Annotated[int, msgspec.Meta(ge=0, le=1000)]


class Address(NamedTuple):
    """Where somebody listens."""

    host: str
    port: int


def read_address(raw: object) -> Address:
    """Read PORT, on this machine alone, or HOST:PORT."""
    host, colon, port = str(raw).rpartition(":")
    if isinstance(raw, bool) or bool(host) != bool(colon) or not port.isdecimal() or int(port) > 65535:
        raise ValueError("a port, such as 9100, or an address, such as 0.0.0.0:9100")
    return Address(host.strip("[]") or "127.0.0.1", int(port))


On = Literal["submit", "start", "resume", "preempt", "end", "fail", "machine", "gpu", "trouble", "wait"]


class HookEntry(msgspec.Struct, frozen=True):
    """Who is told when something happens: a *command* is run, or a *url* called."""

    on: tuple[On, ...]
    command: str | tuple[str, ...] | None = None
    url: str | None = None
    timeout: Duration = Duration(10 * SECOND)
    retries: Retries = 3

    def __post_init__(self) -> None:
        if not self.on:
            raise InputError("on", None, f"at least one of {', '.join(get_args(On))}")
        if (self.command is None) == (self.url is None):
            raise InputError("url", self.url, "either a command or a url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise InputError("url", self.url, "an address that begins with http:// or https://")
        if self.timeout <= 0:
            raise InputError("timeout", "0s", "a duration above 0")
        if self.command is not None:
            command_words(self.command)


class TlsFiles(msgspec.Struct, frozen=True):
    """The certificate that the arbiter shows, and its key."""

    certificate: str
    key: str


_OF_BACKENDS = {
    "address": ("ray", "kubernetes"),
    "partition": ("slurm",),
    "account": ("slurm",),
    "options": ("slurm",),
    "kubernetes": ("kubernetes",),
    "key": ("agents",),
    "copies": ("agents",),
}


class LiveSection(msgspec.Struct, frozen=True):
    """*state*: the folder of the store; *jobs*: that of all jobs, which every machine must see, but for
    agents: these connect to where the arbiter *listens*, with its *key*."""

    backend: Literal["local", "ray", "slurm", "kubernetes", "agents"] = "local"
    state: str | None = None
    jobs: str | None = None
    address: str | None = None
    partition: str | None = None
    account: str | None = None
    options: tuple[str, ...] | None = None
    kubernetes: KubernetesOptions | None = None
    grace: Duration = Duration(30 * SECOND)
    least: Duration = Duration(5 * SECOND)
    patience: Duration = Duration(10 * SECOND)
    progress: Duration = Duration(5 * SECOND)
    checkpoints: Duration = Duration(60 * SECOND)
    look: Duration = Duration(200 * MILLISECOND)
    retries: Retries = 2
    listen: str | None = None
    key: str | None = None
    tls: TlsFiles | None = None
    copies: bool | None = None
    access: AccessSection | None = None
    keys: str | None = None
    metrics: Address | None = None
    hooks: tuple[HookEntry, ...] = ()

    def __post_init__(self) -> None:
        for name, backends in _OF_BACKENDS.items():
            value = getattr(self, name)
            if value is not None and self.backend not in backends:
                raise InputError(name, value, f"backend: {' or '.join(backends)}, which has one")
        if self.backend == "kubernetes" and self.kubernetes is None:
            raise InputError(
                "kubernetes", None, "the image and the volume of jobs: {image: ..., volume: ...}"
            )
        if self.backend == "agents" and (self.listen is None or self.key is None):
            missing = "listen" if self.listen is None else "key"
            raise InputError(missing, None, "HOST:PORT and a file with a key, by which agents connect")
        if self.keys is not None and (self.access is None or self.listen is None):
            missing = "access" if self.access is None else "listen"
            raise InputError(missing, None, "who may do what, and HOST:PORT, beside the keys of users")
        for name in ("grace", "patience", "look"):
            if getattr(self, name) <= 0:
                raise InputError(name, "0s", "a duration above 0")
        if self.least * 2 > self.grace:
            raise InputError("least", write_duration(self.least), "at most half of grace: it is a part of it")


class TaskEntry(msgspec.Struct, frozen=True):
    """As in `JobCommand`; the command as one line, or as a list of words."""

    command: str | tuple[str, ...]
    on_stop: OnStop = "checkpoint"
    processes: Processes = "machine"
    env: dict[str, str] = {}
    directory: str | None = None
    elastic: bool = False

    def __post_init__(self) -> None:
        self._check_sizes()
        self.words()
        if self.elastic and (self.on_stop != "checkpoint" or self.processes == "gpu"):
            told = "false: a job whose GPUs may change has on_stop: checkpoint, and processes: job or machine"
            raise InputError("elastic", True, told)
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                told = "a name without =, and a value, neither with a zero byte"
                raise InputError("env", f"{name}={value}", told)

    def _check_sizes(self) -> None:
        command = self.command if isinstance(self.command, str) else "".join(self.command)
        env = "".join(f"{name}{value}" for name, value in self.env.items())
        for field, text, most in (
            ("command", command, limits.LONGEST_COMMAND),
            ("env", env, limits.LARGEST_ENV),
            ("directory", self.directory or "", limits.LONGEST_PATH),
        ):
            if len(text.encode("utf-8", "replace")) > most:
                raise InputError(field, text, f"at most {most} bytes")
        if "\0" in (self.directory or ""):
            raise InputError("directory", self.directory, "a path without a zero byte")

    def words(self) -> tuple[str, ...]:
        return command_words(self.command)

    def task(self, home: Path) -> JobCommand:
        """*home*: what a folder is relative to. No link is followed here: that is for the user who runs it,
        who may not be allowed to know where one leads."""
        directory = str((home / (self.directory or ".")).absolute())
        return JobCommand(self.words(), self.on_stop, self.processes, self.env, directory, self.elastic)


@lru_cache(maxsize=16)
def _split(line: str) -> tuple[str, ...]:
    return tuple(shlex.split(line))


def command_words(command: str | tuple[str, ...]) -> tuple[str, ...]:
    try:
        words = command if isinstance(command, tuple) else _split(command)
    except ValueError as error:
        raise InputError("command", command, f"a command line: {error}") from None
    if not words or not words[0] or any("\0" in word for word in words):
        raise InputError("command", command, "a command, such as python train.py")
    return words


LIVE_FIELDS = tuple(field.name for field in msgspec.structs.fields(TaskEntry))


def simulated(raw: Any, field: str) -> Any:
    """An app without what only a live cluster needs. A wrong name is told with all that are right."""
    if not isinstance(raw, dict):
        return raw
    check_keys(raw, [*(each.name for each in msgspec.structs.fields(AppEntry)), *LIVE_FIELDS], field)
    return {name: value for name, value in raw.items() if name not in LIVE_FIELDS}


def task_entry(raw: Any, field: str) -> TaskEntry | None:
    """None where it has no command."""
    found = {name: raw[name] for name in LIVE_FIELDS if name in raw} if isinstance(raw, dict) else {}
    if not found:
        return None
    read: TaskEntry = Decoder().decode(TaskEntry, found, field)
    return read
