"""What a scenario file may say. Field types carry the units; `Scenario` is the file, checked and complete."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import msgspec

from astrarium.core.choice import DEFAULT_SEED, Choice, Seed
from astrarium.core.errors import InputError
from astrarium.core.profiles import Dynamic, Profile, profile_by_length
from astrarium.core.quantities import (
    MILLISECOND,
    SECOND,
    Bytes,
    Duration,
    check_above_zero,
)
from astrarium.serving.scenario.cluster import Cluster
from astrarium.serving.scenario.plain import plain_value
from astrarium.serving.scenario.rates import mean_total, scaled
from astrarium.serving.scenario.server_options import ServerOptions
from astrarium.serving.scenario.tensor_entries import BackendChoice, TensorEntry
from astrarium.serving.scenario.tokenization import Tokenization
from astrarium.serving.scenario.workload import NO_WORKLOAD, NOTHING, Workload

Count = Annotated[int, msgspec.Meta(ge=1)]
Priority = Annotated[int, msgspec.Meta(ge=1)]
LARGEST_BATCH = 512
DEFAULT_POLICY = "astrarium"


class Parallel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parallel form runs a model over several GPUs in alike stages; `memory` is that of each GPU."""

    profile: Profile
    memory: Bytes


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model as the file has it; `copies` makes NAME-0, NAME-1, ... of it.

    From `backend` on, the fields matter to serving alone, `parallel` (by shape, such as op1pp2) to planning,
    and `path_time` to promises of what a server carries.
    """

    profile: Any  # read by the hook for profiles; a zoo profile brings its own SLO
    slo: Duration | None = None
    memory: Bytes = Bytes(0)
    max_batch: Count = LARGEST_BATCH
    parallel: dict[str, Parallel] = {}
    path_time: Duration | None = None  # of the busiest thread of a server's path, by call
    copies: Count | None = None
    backend: Any = None
    inputs: tuple[TensorEntry, ...] = ()  # none: the backend knows them
    outputs: tuple[TensorEntry, ...] = ()
    lengths: str = ""  # an input that the server fills with the lengths of the items
    mask: str = ""  # an input that the server fills with ones, and with zeros where an item was padded
    pack: bool = False  # open inputs have the items of a batch one after another, without padding
    offsets: str = ""  # an input that the server fills with where packed items begin, and the last one ends
    preprocess: str | Tokenization | None = None  # in the frontend: Python code, FILE:NAME, or a tokenizer
    accepts: tuple[TensorEntry, ...] = ()  # what clients send to it; none: what the model takes
    priorities: dict[Priority, Duration] = {}  # objectives that a request may choose instead of `slo`
    loaded: bool = True  # whether it is there from the start

    def __post_init__(self) -> None:
        if self.path_time is not None:
            check_above_zero("path_time", self.path_time)


class Model(ModelEntry, frozen=True):
    """A model was read: it is one of its copies, if there are any, and file names are absolute."""

    profile: Profile
    slo: Duration
    backend: BackendChoice = BackendChoice()


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
    def has_lengths(self) -> bool:
        """Whether some model's requests are of unequal length."""
        return any(profile_by_length(model.profile) is not None for model in self.models.values())

    @property
    def duration(self) -> Duration:
        """Return when arrivals stop."""
        if self.workload == NO_WORKLOAD:
            raise InputError("workload", None, "a value: simulating needs this section")
        if self.workload.duration is None:
            raise InputError("workload.duration", None, "a value")
        return self.workload.duration

    @property
    def length(self) -> Duration:
        """Return when the last request arrives: progress is measured by it."""
        return self.workload.duration or Duration(0)

    @property
    def total_rate(self) -> float:
        """Return the requests per second, the mean over the duration."""

        if self.workload.file is not None:
            from astrarium.serving.traces import read_trace

            return len(read_trace(self.workload.file)) * SECOND / self.duration
        return mean_total(self.workload, list(self.models))

    def with_policy(self, name: str, **parameters: Any) -> Scenario:
        return msgspec.structs.replace(self, policy=Choice(name, parameters))

    def with_seed(self, seed: int) -> Scenario:
        return msgspec.structs.replace(self, seed=seed)

    def with_rate(self, total: float) -> Scenario:
        """Return the same mix and the same changes, scaled until `total_rate` is *total*."""

        if self.workload.arrivals == "trace":
            raise InputError("workload.rate", total, "other arrivals: a trace has the rate it has")
        if not math.isfinite(total) or total <= 0:
            raise InputError("workload.rate", total, "a rate above 0")
        return msgspec.structs.replace(self, workload=scaled(self.workload, total, self.total_rate))

    def to_yaml(self) -> str:
        import yaml

        return str(yaml.safe_dump(plain_scenario(self), sort_keys=False, allow_unicode=True, width=110))


def plain_scenario(scenario: Scenario) -> dict[str, Any]:
    """Return the scenario as data that JSON and YAML know, quantities with their units."""
    raw: dict[str, Any] = plain_value(Scenario, scenario)
    raw["policy"] = scenario.policy.plain()
    raw["seed"] = scenario.seed
    return raw
