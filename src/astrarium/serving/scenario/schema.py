"""What a scenario file may say. Field types carry the units; `Scenario` is the file, checked and complete."""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from astrarium.core.choice import DEFAULT_SEED, Choice, Seed
from astrarium.core.decode import bare
from astrarium.core.distributions import Constant, Distribution, Modes, Samples
from astrarium.core.errors import InputError, one_of
from astrarium.core.profiles import Dynamic, Profile, Table
from astrarium.core.quantities import (
    MILLISECOND,
    SECOND,
    Bytes,
    Duration,
    Rate,
    Time,
    check_order,
    write_bytes,
    write_duration,
    write_rate,
)
from astrarium.serving.live.ranges import check_limits

# What a scenario file may say for serving alone: the simulator ignores it.


Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Size = Annotated[int, msgspec.Meta(ge=-1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Waiting = Annotated[int, msgspec.Meta(ge=1)]
# As in serving.live.tensors, which would bring numpy along.
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "BF16", "BYTES",
]  # fmt: skip
EMULATED = "emulated"
MODEL = "model"  # the option that a backend's short form sets


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a model: the shape of one item, without the batch; -1 is any size.

    A call whose input has a number outside of `values`, or NaN or infinity where all must be `finite`, is
    refused.
    """

    name: Name
    datatype: Datatype
    shape: tuple[Size, ...]
    values: tuple[Any, ...] | None = None  # the lowest number and the highest
    finite: bool = False

    def __post_init__(self) -> None:
        if 0 in self.shape:
            raise InputError("shape", list(self.shape), "sizes of at least 1, or -1 for any")
        check_limits(self.datatype, self.values, self.finite)


class BackendChoice(msgspec.Struct, frozen=True):
    """What runs the model; the options are the backend's own, file names absolute."""

    name: str = EMULATED
    options: dict[str, Any] = {}

    def plain(self) -> dict[str, Any]:
        short = self.options.keys() == {MODEL}
        return {self.name: self.options[MODEL] if short else dict(self.options)}


Count = Annotated[int, msgspec.Meta(ge=1)]


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files in PEM form: the certificate with its chain, and its private key."""

    cert: str
    key: str


class ServerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where and how a scenario is served. A port of 0 is any that is free; `grpc: null` is no gRPC."""

    http: Port = 8000
    grpc: Port | None = 8001
    host: Name = "127.0.0.1"
    queue: Waiting = 10_000  # the most requests that may wait
    payload: Bytes = Bytes(64 * 2**20)  # the largest body of a request
    memory: Bytes = Bytes(256 * 2**20)  # shared with the workers, for all requests at once
    api_keys: str | None = None  # a file with one key on each line
    tls: Tls | None = None
    record: str | None = None  # a file for the recording that can be replayed
    log: Literal["text", "json"] = "text"
    start_limit: Duration = Duration(120 * SECOND)  # for the workers to come up with their models
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where real models run; auto: on CUDA if there is any
    threads: Count | None = None  # that read calls on the native path; one for every four cores, four at most
    path: Literal["auto", "native", "python"] = "auto"  # of calls; auto: native where that is possible
    reserve: bool = True  # a process that is ready to take the place of a worker that died

    def __post_init__(self) -> None:
        if self.grpc and self.grpc == self.http:
            raise InputError("grpc", self.grpc, "another port than that of http")
        if self.payload < 1:
            raise InputError("payload", write_bytes(self.payload), "a size above 0")
        if self.start_limit < 1:
            raise InputError("start_limit", write_duration(self.start_limit), "a time above 0")
        if self.memory < self.payload:
            expected = f"at least {write_bytes(self.payload)}, the largest payload"
            raise InputError("memory", write_bytes(self.memory), expected)


GpuCount = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
Priority = Annotated[int, msgspec.Meta(ge=1)]
LARGEST_BATCH = 512
MOST_ARRIVALS = 1_000_000_000
NOTHING = Duration(0)
DEFAULT_POLICY = "astrarium"

Rates = Rate | dict[str, Rate]  # the total, or one for each model


class GpuGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Alike GPUs, spread evenly over `nodes` machines of their own."""

    count: GpuCount
    kind: str = "gpu"
    memory: Bytes = Bytes(0)
    nodes: Count = 1

    def __post_init__(self) -> None:
        if self.nodes > self.count:
            raise InputError("nodes", self.nodes, f"at most one node for each of the {self.count} GPUs")


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs are numbered in order. The short form (a count, with kind, memory and nodes beside it) is one
    group."""

    gpus: GpuCount | tuple[GpuGroup, ...]
    kind: str | None = None
    memory: Bytes | None = None
    nodes: Count | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("kind", "memory", "nodes") if getattr(self, name) is not None]
        if isinstance(self.gpus, int):
            GpuGroup(self.gpus, nodes=self.nodes or 1)
        elif given:
            raise InputError(given[0], getattr(self, given[0]), "this field inside each group of `gpus`")
        elif not self.gpus:
            raise InputError("gpus", [], "at least one group of GPUs")

    @property
    def groups(self) -> tuple[GpuGroup, ...]:
        if not isinstance(self.gpus, int):
            return self.gpus
        group = GpuGroup(self.gpus, self.kind or "gpu", self.memory or Bytes(0), self.nodes or 1)
        return (group,)

    @property
    def size(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def kinds(self) -> list[str]:
        """Each kind once, in order."""
        return list(dict.fromkeys(group.kind for group in self.groups))


class Parallel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model over several GPUs, all stages alike: how long one takes, and what it needs of each GPU."""

    profile: Profile
    memory: Bytes


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model as the file has it; `copies` makes NAME-0, NAME-1, ... of it.

    From `backend` on, the fields matter to serving alone, and `parallel` (by shape, such as op1pp2) to
    planning.
    """

    profile: Any  # read by the hook for profiles; a zoo profile brings its own SLO
    slo: Duration | None = None
    memory: Bytes = Bytes(0)
    max_batch: Count = LARGEST_BATCH
    parallel: dict[str, Parallel] = {}
    copies: Count | None = None
    backend: Any = None
    inputs: tuple[TensorEntry, ...] = ()  # none: the backend knows them
    outputs: tuple[TensorEntry, ...] = ()
    preprocess: str | None = None  # Python code that runs in the frontend, FILE:NAME
    accepts: tuple[TensorEntry, ...] = ()  # what clients send to it; none: what the model takes
    priorities: dict[Priority, Duration] = {}  # objectives that a request may choose instead of `slo`
    loaded: bool = True  # whether it is there from the start


class Model(ModelEntry, frozen=True):
    """A model that was read: one of its copies, if there are any, and file names are absolute."""

    profile: Profile
    slo: Duration
    backend: BackendChoice = BackendChoice()


class Zipf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    zipf: Annotated[float, msgspec.Meta(ge=0)]


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From *at* on, if the run lasts that long. A total keeps the mix of models; a mapping changes the
    models it names."""

    at: Duration
    rate: Rates


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    arrivals: Literal["poisson", "gamma", "uniform", "trace"]
    rate: Rates | None = None
    popularity: Literal["equal"] | Zipf | None = None
    changes: tuple[Change, ...] = ()
    shape: Annotated[float, msgspec.Meta(ge=0.001)] | None = None
    file: str | None = None
    duration: Duration | None = None
    warmup: Duration = NOTHING

    def __post_init__(self) -> None:
        needed, useless = _FIELDS[self.arrivals]
        for name in needed:
            if getattr(self, name) is None:
                raise InputError(name, None, f"a value: {self.arrivals} arrivals need it")
        for name in useless:
            if getattr(self, name):
                raise InputError(name, getattr(self, name), f"no such field with {self.arrivals} arrivals")
        if self.popularity is not None and isinstance(self.rate, dict):
            raise InputError("popularity", self.popularity, "no such field with a rate for each model")
        self._check_times()

    def _check_times(self) -> None:
        if self.duration is None:
            return
        if self.duration < 1:
            raise InputError("duration", write_duration(self.duration), "a duration above 0")
        if self.warmup >= self.duration:
            expected = f"a warm-up shorter than the duration, {write_duration(self.duration)}"
            raise InputError("warmup", write_duration(self.warmup), expected)
        check_order([change.at for change in self.changes])


_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "poisson": (("rate", "duration"), ("shape", "file")),
    "uniform": (("rate", "duration"), ("shape", "file")),
    "gamma": (("rate", "duration", "shape"), ("file",)),
    "trace": (("file",), ("rate", "popularity", "changes", "shape")),
}


# What a scenario has that is only served.
NO_WORKLOAD = Workload("uniform", rate=Rate(0), duration=Duration(1))


class Delays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`control`: the order reaches the GPU; `data`: one request's input does; `response`: the answer's."""

    control: Duration = NOTHING
    data: Duration = NOTHING
    response: Duration = NOTHING


class Preemption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cost`: how long a GPU is unusable after a batch on it was cancelled."""

    cost: Duration = NOTHING


class Profiling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How policies learn the times of dynamic models: `history` single times for each application before
    the run (0: a cold start), then a `share` of the finished requests, each `delay` after its batch's end."""

    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    delay: Duration = Duration(100 * MILLISECOND)
    history: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1000


class Scenario(msgspec.Struct, frozen=True):
    """Requests to serve: models, GPUs, arrivals and the policy that makes batches.

    Models by name, in the order of the file, copies and zoos written out, files with absolute paths.
    """

    level: ClassVar[str] = "serving"
    cluster: Cluster
    models: dict[str, Model]
    policy: Choice
    workload: Workload = NO_WORKLOAD
    network: Delays = Delays()
    preemption: Preemption = Preemption()
    profiling: Profiling = Profiling()
    server: ServerOptions = ServerOptions()
    seed: Seed = DEFAULT_SEED

    @property
    def dynamic(self) -> bool:
        """Whether some model's execution times are distributions."""
        return any(isinstance(model.profile, Dynamic) for model in self.models.values())

    @property
    def duration(self) -> Duration:
        """Arrivals stop here."""
        if self.workload == NO_WORKLOAD:
            raise InputError("workload", None, "a value: simulating needs this section")
        if self.workload.duration is None:
            raise InputError("workload.duration", None, "a value")
        return self.workload.duration

    @property
    def length(self) -> Duration:
        """When the last request arrives: progress is measured by it."""
        return self.workload.duration or Duration(0)

    @property
    def total_rate(self) -> float:
        """Requests per second, the mean over the duration."""

        if self.workload.file is not None:
            from astrarium.serving.traces import read_trace

            return len(read_trace(self.workload.file)) * SECOND / self.duration
        return mean_total(self.workload, list(self.models))

    def with_policy(self, name: str, **parameters: Any) -> Scenario:
        return msgspec.structs.replace(self, policy=Choice(name, parameters))

    def with_seed(self, seed: int) -> Scenario:
        return msgspec.structs.replace(self, seed=seed)

    def with_rate(self, total: float) -> Scenario:
        """The same mix and the same changes, scaled until `total_rate` is *total*."""

        if self.workload.arrivals == "trace":
            raise InputError("workload.rate", total, "other arrivals: a trace has the rate it has")
        if not math.isfinite(total) or total <= 0:
            raise InputError("workload.rate", total, "a rate above 0")
        return msgspec.structs.replace(self, workload=scaled(self.workload, total, self.total_rate))

    def to_yaml(self) -> str:
        import yaml

        return str(yaml.safe_dump(plain_scenario(self), sort_keys=False, allow_unicode=True, width=110))


# A scenario as YAML that loads back equal: the inverse of reading.


_WRITERS: dict[Any, Any] = {Duration: write_duration, Rate: write_rate, Bytes: write_bytes}


def plain_scenario(scenario: Scenario) -> dict[str, Any]:
    """The scenario as data that JSON and YAML know, quantities with their units."""
    raw: dict[str, Any] = plain(Scenario, scenario)
    raw["policy"] = scenario.policy.plain()
    raw["seed"] = scenario.seed
    return raw


def plain(kind: Any, value: Any) -> Any:
    kind = bare(kind)
    if kind in _WRITERS:
        return _WRITERS[kind](value)
    if isinstance(value, msgspec.Struct):
        return _plain_struct(value)
    if get_origin(kind) in (Union, types.UnionType):
        return plain(_arm(get_args(kind), value), value)
    if isinstance(value, tuple | list):
        return [plain(get_args(kind)[0], item) for item in value]
    if isinstance(value, dict):
        inner = get_args(kind)[1] if get_args(kind) else Any
        return {key: plain(inner, item) for key, item in value.items()}
    return value


def _plain_struct(value: msgspec.Struct) -> Any:
    if isinstance(value, BackendChoice):
        return value.plain()
    if isinstance(value, Table):
        return {"table": plain(dict[int, Duration], value.points)}
    if isinstance(value, Constant):
        return {"constant": write_duration(value.time)}
    if isinstance(value, Modes):
        return {"modes": [_plain_fields(mode) for mode in value.modes]}
    if isinstance(value, Samples):
        return {"samples": value.file or plain(tuple[Duration, ...], value.times)}
    fields = _plain_fields(value)
    tagged = isinstance(value, Profile | Distribution) and value.form and value.form not in fields
    return {value.form: fields} if tagged else fields  # type: ignore[attr-defined]


def _plain_fields(value: msgspec.Struct) -> dict[str, Any]:
    """Fields that are at their default go without saying."""
    fields = {}
    for info in msgspec.structs.fields(value):
        present = getattr(value, info.name)
        default = info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()
        if info.required or present != default:
            fields[info.name] = plain(info.type, present)
    return fields


def _arm(arms: tuple[Any, ...], value: Any) -> Any:
    """Which arm of a union a value belongs to: the container of its type, else the one that is none."""
    if value is None:
        return type(None)
    containers = [arm for arm in arms if get_origin(arm) is type(value)]
    scalars = [arm for arm in arms if get_origin(arm) not in (dict, tuple) and arm is not type(None)]
    return (containers or scalars)[0]


# Each model's rate over time, from a total and its popularity or from rates by name.


class Span(NamedTuple):
    """Rates, in the order of the models, from one moment until the next."""

    start: Time
    end: Time
    rates: tuple[float, ...]


def spans(workload: Workload, names: Sequence[str]) -> list[Span]:
    assert workload.rate is not None, "a trace has no rates"
    assert workload.duration is not None
    rates = _initial(workload.rate, workload, names)
    shares = _shares(rates, zipf(len(names), 0))
    schedule: list[tuple[Time, tuple[float, ...]]] = [(0, rates)]
    for change in (change for change in workload.changes if change.at < workload.duration):
        rates = _changed(change.rate, rates, shares, names)
        shares = _shares(rates, shares)
        schedule.append((change.at, rates))
    schedule.append((workload.duration, ()))
    return [Span(start, end, rates) for (start, rates), (end, _) in pairwise(schedule)]


def mean_total(workload: Workload, names: Sequence[str]) -> float:
    parts = spans(workload, names)
    if len(parts) == 1 and not isinstance(workload.rate, dict):
        return workload.rate or 0.0  # exactly as written, not the sum of its shares
    served = math.fsum(math.fsum(part.rates) * (part.end - part.start) for part in parts)
    return served / (workload.duration or 1)


def scaled(workload: Workload, total: float, present: float) -> Workload:
    def grown(rates: Rates) -> Rates:
        if isinstance(rates, dict):
            return {name: Rate(_times(rate, total, present)) for name, rate in rates.items()}
        return Rate(_times(rates, total, present))

    changes = tuple(msgspec.structs.replace(change, rate=grown(change.rate)) for change in workload.changes)
    return msgspec.structs.replace(workload, rate=grown(workload.rate or Rate(0)), changes=changes)


def check(workload: Workload, names: Sequence[str]) -> None:
    """Every name is a model's, every model has a rate, and something arrives."""
    given: list[tuple[str, Rates | None]] = [("workload.rate", workload.rate)]
    given += [
        (f"workload.changes[{place}].rate", change.rate) for place, change in enumerate(workload.changes)
    ]
    for field, rates in given:
        _check_names(field, rates if isinstance(rates, dict) else {}, names)
    missing = [name for name in names if isinstance(workload.rate, dict) and name not in workload.rate]
    if missing:
        raise InputError(f"workload.rate.{missing[0]}", None, "a rate for every model (0/s for none)")
    total = mean_total(workload, names)
    if total <= 0:
        raise InputError("workload.rate", plain(Rates, workload.rate), "a rate above 0")
    if total * (workload.duration or 0) > MOST_ARRIVALS * SECOND:
        expected = f"at most {MOST_ARRIVALS:,} arrivals in the duration: a lower rate, or a shorter run"
        raise InputError("workload.rate", plain(Rates, workload.rate), expected)


def _check_names(field: str, rates: dict[str, Rate], names: Sequence[str]) -> None:
    for name, rate in rates.items():
        if name not in names:
            expected = f"a model: {one_of(list(names), name)}"
            raise InputError(f"{field}.{name}", write_rate(rate), expected)


def _initial(rates: Rates, workload: Workload, names: Sequence[str]) -> tuple[float, ...]:
    if isinstance(rates, dict):
        return tuple(rates[name] for name in names)
    exponent = workload.popularity.zipf if isinstance(workload.popularity, Zipf) else 0
    return tuple(rates * share for share in zipf(len(names), exponent))


def zipf(models: int, exponent: float) -> list[float]:
    """The i-th model gets a share in proportion to 1 / i^exponent: 0 makes all equal."""
    weights = [rank**-exponent for rank in range(1, models + 1)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _changed(
    rates: Rates, present: tuple[float, ...], shares: Sequence[float], names: Sequence[str]
) -> tuple[float, ...]:
    if isinstance(rates, dict):
        return tuple(rates.get(name, rate) for name, rate in zip(names, present, strict=True))
    return tuple(rates * share for share in shares)


def _shares(rates: Sequence[float], last: Sequence[float]) -> list[float]:
    """The mix; while nothing arrives, the last one is remembered."""
    total = math.fsum(rates)
    return [rate / total for rate in rates] if total > 0 else list(last)


def _times(rate: float, total: float, present: float) -> float:
    return total if rate == present else rate * total / present
