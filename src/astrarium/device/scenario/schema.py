"""The sections of a scenario of jobs: the GPU, and the jobs or a mix of them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.core.errors import InputError, written_in
from astrarium.core.quantities import Bytes, Duration
from astrarium.device import salus as workloads
from astrarium.device import salus_trace

FROM_SALUS = "salus:"
Count = Annotated[int, msgspec.Meta(ge=1)]
JobCount = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Overhead = Annotated[float, msgspec.Meta(ge=0, le=10)]
Power = Annotated[float, msgspec.Meta(ge=-10, le=10)]
_OF_A_WORKLOAD = ("persistent", "ephemeral", "iteration", "demand")
_NEEDED = ("persistent", "ephemeral", "iteration")


class Gpu(msgspec.Struct, frozen=True):
    """`switch` is what a change of jobs in a lane costs, `overhead` what every iteration does, as a share,
    and `pause` how long a job then needs for its next data. Iterations shorter than a `turn` are run as many
    at a time as fill it."""

    memory: Bytes = workloads.GPU_MEMORY
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
        with written_in("workload", workload):
            workloads.lookup(workload.removeprefix(FROM_SALUS))
        for name in _OF_A_WORKLOAD:
            if getattr(self, name) is not None:
                raise InputError(name, getattr(self, name), f"nothing here: {workload} says it")


class Mix(msgspec.Struct, frozen=True):
    """So many jobs of Salus's Table A.1, drawn as device/salus_trace.py says."""

    salus: JobCount
    interval: Duration = Duration(salus_trace.INTERVAL)
    tail: Power = salus_trace.TAIL
    early: Power = salus_trace.EARLY
