"""What a scenario file may say. Field types carry the units; `Scenario` is the file, checked and complete."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.profiles import Dynamic, Profile
from astrarium.core.quantities import Bytes, Duration, Rate, check_order, write_bytes, write_duration
from astrarium.core.units import MILLISECOND, SECOND

# What a scenario file may say for serving alone: the simulator ignores it.


Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Size = Annotated[int, msgspec.Meta(ge=-1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Waiting = Annotated[int, msgspec.Meta(ge=1)]
# As in engines.tensors, which would bring numpy along.
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "BYTES",
]  # fmt: skip
EMULATED = "emulated"
MODEL = "model"  # the option that a backend's short form sets


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a model: the shape of one item, without the batch; -1 is any size."""

    name: Name
    datatype: Datatype
    shape: tuple[Size, ...]

    def __post_init__(self) -> None:
        if 0 in self.shape:
            raise InputError("shape", list(self.shape), "sizes of at least 1, or -1 for any")


class BackendChoice(msgspec.Struct, frozen=True):
    """What runs the model; the options are the backend's own, file names absolute."""

    name: str = EMULATED
    options: dict[str, Any] = {}

    def plain(self) -> dict[str, Any]:
        short = self.options.keys() == {MODEL}
        return {self.name: self.options[MODEL] if short else dict(self.options)}


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


def check_names(tensors: tuple[TensorEntry, ...]) -> None:
    names = [tensor.name for tensor in tensors]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InputError(f"[{place}].name", name, f"a name of its own, not {one_of(names[:place])}")


Count = Annotated[int, msgspec.Meta(ge=1)]
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
    """A model as the file has it; `copies` makes NAME-0, NAME-1, ... of it."""

    profile: Any  # read by the hook for profiles; a zoo profile brings its own SLO
    slo: Duration | None = None
    memory: Bytes = Bytes(0)
    max_batch: Count = LARGEST_BATCH
    parallel: dict[str, Parallel] = {}
    copies: Count | None = None
    backend: Any = None
    inputs: tuple[TensorEntry, ...] = ()
    outputs: tuple[TensorEntry, ...] = ()
    preprocess: str | None = None
    accepts: tuple[TensorEntry, ...] = ()
    priorities: dict[Priority, Duration] = {}
    loaded: bool = True


class Model(msgspec.Struct, frozen=True):
    """From `backend` on, the fields matter to serving alone, and `parallel` (by shape, such as op1pp2) to
    planning."""

    profile: Profile
    slo: Duration
    memory: Bytes = Bytes(0)
    max_batch: Count = LARGEST_BATCH
    parallel: dict[str, Parallel] = {}
    backend: BackendChoice = BackendChoice()
    inputs: tuple[TensorEntry, ...] = ()  # none: the backend knows them
    outputs: tuple[TensorEntry, ...] = ()
    preprocess: str | None = None  # Python code that runs in the frontend, FILE:NAME
    accepts: tuple[TensorEntry, ...] = ()  # what clients send to it; none: what the model takes
    priorities: dict[Priority, Duration] = {}  # objectives that a request may choose instead of `slo`
    loaded: bool = True  # whether it is there from the start


class PolicyChoice(msgspec.Struct, frozen=True):
    """The parameters are those of the policy's own `Parameters`, as written."""

    name: str
    parameters: dict[str, Any] = {}


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
    """Models by name, in the order of the file, copies and zoos written out, files with absolute paths."""

    cluster: Cluster
    models: dict[str, Model]
    policy: PolicyChoice
    workload: Workload = NO_WORKLOAD
    network: Delays = Delays()
    preemption: Preemption = Preemption()
    profiling: Profiling = Profiling()
    server: ServerOptions = ServerOptions()
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0

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
    def total_rate(self) -> float:
        """Requests per second, the mean over the duration."""
        from astrarium.serving.scenario.rates import mean_total

        if self.workload.file is not None:
            from astrarium.serving.traces import read_trace

            return len(read_trace(self.workload.file)) * SECOND / self.duration
        return mean_total(self.workload, list(self.models))

    def with_policy(self, name: str, **parameters: Any) -> Scenario:
        return msgspec.structs.replace(self, policy=PolicyChoice(name, parameters))

    def with_seed(self, seed: int) -> Scenario:
        return msgspec.structs.replace(self, seed=seed)

    def with_rate(self, total: float) -> Scenario:
        """The same mix and the same changes, scaled until `total_rate` is *total*."""
        from astrarium.serving.scenario.rates import scaled

        if self.workload.arrivals == "trace":
            raise InputError("workload.rate", total, "other arrivals: a trace has the rate it has")
        if not math.isfinite(total) or total <= 0:
            raise InputError("workload.rate", total, "a rate above 0")
        return msgspec.structs.replace(self, workload=scaled(self.workload, total, self.total_rate))

    def to_yaml(self) -> str:
        from astrarium.serving.scenario.write import to_yaml

        return to_yaml(self)
