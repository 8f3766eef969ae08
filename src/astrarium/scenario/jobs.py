"""Scenario files whose subject is jobs on one GPU: read, overridden, checked in every part.

gpu: {memory: 16GB}
jobs:
  - {name: big, workload: salus:resnet152_75, length: 10min}
  - {name: small, persistent: 100MB, ephemeral: 1GB, iteration: 50ms, iterations: 200, arrival: 30s}
policy: {name: srtf}
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from astrarium.core.errors import InputError
from astrarium.core.quantities import Bytes, Duration
from astrarium.device.registry import iteration_policies
from astrarium.scenario.decode import Decoder, check_keys
from astrarium.scenario.overrides import overridden
from astrarium.scenario.yaml_file import read_yaml
from astrarium.workloads import salus, salus_trace

DEFAULT_POLICY = "fair"
SECTIONS = ("gpu", "jobs", "policy", "seed")
FROM_SALUS = "salus:"

Count = Annotated[int, msgspec.Meta(ge=1)]
JobCount = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Overhead = Annotated[float, msgspec.Meta(ge=0, le=10)]
Power = Annotated[float, msgspec.Meta(ge=-10, le=10)]
Seed = Annotated[int, msgspec.Meta(ge=0)]

_OF_A_WORKLOAD = ("persistent", "ephemeral", "iteration", "demand")
_NEEDED = ("persistent", "ephemeral", "iteration")


class Gpu(msgspec.Struct, frozen=True):
    """`switch` is what a change of jobs in a lane costs, `overhead` what every iteration does, as a share,
    and `pause` how long a job then needs for its next data. Iterations shorter than a `turn` are run as many
    at a time as fill it."""

    memory: Bytes = salus.GPU_MEMORY
    switch: Duration = Duration(0)
    overhead: Overhead = 0.0
    pause: Duration = Duration(0)
    turn: Duration = Duration(0)

    def __post_init__(self) -> None:
        if not self.memory:
            raise InputError("memory", 0, "more than nothing, such as 16GB")


class JobEntry(msgspec.Struct, frozen=True):
    """`count` jobs, `every` so long: NAME, or NAME-0, NAME-1, ... where there are several."""

    name: str
    workload: str | None = None
    persistent: Bytes | None = None
    ephemeral: Bytes | None = None
    iteration: Duration | None = None
    demand: Share | None = None
    iterations: Count | None = None
    length: Duration | None = None
    arrival: Duration = Duration(0)
    count: JobCount = 1
    every: Duration = Duration(0)
    priority: int = 0

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InputError("name", self.name, "a name")
        if self.every and self.count == 1:
            raise InputError("every", f"{self.every}ns", "a count of several jobs with it, such as count: 3")
        if self.workload is None:
            self._check_complete()
        else:
            self._check_workload(self.workload)
        if (self.iterations is None) == (self.length is None):
            raise InputError("iterations", self.iterations, "either iterations or a length such as 5min")
        if self.length == 0 or self.iteration == 0:
            field = "length" if self.length == 0 else "iteration"
            raise InputError(field, "0s", "a duration above 0")

    @property
    def names(self) -> list[str]:
        return [self.name] if self.count == 1 else [f"{self.name}-{place}" for place in range(self.count)]

    def _check_complete(self) -> None:
        for name in _NEEDED:
            if getattr(self, name) is None:
                what = (
                    f"a value, or a workload such as {FROM_SALUS}resnet50_50 in place of {', '.join(_NEEDED)}"
                )
                raise InputError(name, None, what)

    def _check_workload(self, workload: str) -> None:
        if not workload.startswith(FROM_SALUS):
            raise InputError("workload", workload, f"{FROM_SALUS}NAME, such as {FROM_SALUS}resnet50_50")
        try:
            salus.lookup(workload.removeprefix(FROM_SALUS))
        except InputError as error:
            raise InputError("workload", workload, error.expected) from None
        for name in _OF_A_WORKLOAD:
            if getattr(self, name) is not None:
                raise InputError(name, getattr(self, name), f"nothing here: {workload} says it")


class Mix(msgspec.Struct, frozen=True):
    """So many jobs of Salus's Table A.1, drawn as workloads/salus_trace.py says."""

    salus: JobCount
    interval: Duration = Duration(salus_trace.INTERVAL)
    tail: Power = salus_trace.TAIL
    early: Power = salus_trace.EARLY


class JobScenario(msgspec.Struct, frozen=True):
    gpu: Gpu
    jobs: tuple[JobEntry, ...] | Mix
    policy: str
    seed: int
    raw: dict[str, Any]  # as written, overrides included

    def with_policy(self, name: str) -> JobScenario:
        _check_policy(name)
        raw = {**self.raw, "policy": {"name": name}}
        return msgspec.structs.replace(self, policy=name, raw=raw)

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.raw, sort_keys=False))


def has_jobs(path: Path) -> bool:
    """Whether this file's subject is jobs on one GPU, not models to be served."""
    raw = read_yaml(path)
    if not raw:
        what = "a scenario: cluster, models and workload, or gpu and jobs"
        raise InputError("", "nothing" if raw is None else raw, what, str(path))
    if isinstance(raw, dict) and "apps" in raw and "models" not in raw:
        what = "models to serve or jobs on one GPU: apps on a cluster are run by `astrarium cluster simulate`"
        raise InputError("apps", None, what, str(path))
    return isinstance(raw, dict) and "jobs" in raw


def load(path: str | Path, overrides: Sequence[str] = ()) -> JobScenario:
    try:
        return parse(overridden(read_yaml(Path(path)), overrides))
    except InputError as error:
        raise error.read_from(str(path)) from None


def parse(raw: Any) -> JobScenario:
    if not isinstance(raw, dict):
        raise InputError("", raw, "a mapping with gpu and jobs")
    check_keys(raw, list(SECTIONS), "")
    decode = Decoder().decode
    return JobScenario(
        gpu=decode(Gpu, {} if raw.get("gpu") is None else raw["gpu"], "gpu"),
        jobs=_jobs(raw.get("jobs"), decode),
        policy=_policy(raw.get("policy")),
        seed=decode(Seed, raw.get("seed", 1), "seed"),
        raw=raw,
    )


def _jobs(raw: Any, decode: Any) -> tuple[JobEntry, ...] | Mix:
    if isinstance(raw, dict):
        mix: Mix = decode(Mix, raw, "jobs")
        if not mix.interval:
            raise InputError("jobs.interval", "0s", "a duration above 0, such as 30s")
        return mix
    if not isinstance(raw, list) or not raw:
        raise InputError("jobs", raw, "a list of jobs, or a mix such as {salus: 100}")
    entries: tuple[JobEntry, ...] = decode(tuple[JobEntry, ...], raw, "jobs")
    taken: set[str] = set()
    for place, entry in enumerate(entries):
        for name in dict.fromkeys([entry.name, *entry.names]):
            if name in taken:
                raise InputError(f"jobs[{place}].name", name, "a name that no other job has")
            taken.add(name)
    return entries


def _policy(raw: Any) -> str:
    if raw is None:
        return DEFAULT_POLICY
    if not isinstance(raw, dict):
        raise InputError("policy", raw, f"a mapping such as {{name: {DEFAULT_POLICY}}}")
    check_keys(raw, ["name"], "policy")
    name = raw.get("name", DEFAULT_POLICY)
    _check_policy(name)
    return str(name)


def _check_policy(name: Any) -> None:
    try:
        iteration_policies.get(str(name))
    except InputError as error:
        raise InputError("policy.name", name, error.expected) from None
