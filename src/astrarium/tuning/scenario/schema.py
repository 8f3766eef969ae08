"""The sections of a tuning scenario: costs, emulated GPUs, a task, and how a live run trains."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND, SECOND, Duration, check_above_zero
from astrarium.tuning.live.training.workers import Overhead
from astrarium.tuning.samplers import Goal

Gpus = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Iterations = Annotated[int, msgspec.Meta(ge=0)]
Threads = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Spread = Annotated[float, msgspec.Meta(ge=0, le=3)]
Noise = Annotated[float, msgspec.Meta(ge=0)]
Patience = Annotated[float, msgspec.Meta(gt=0)]
Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=1000)]
Factor = Annotated[float, msgspec.Meta(gt=0, le=1000)]
EngineName = Literal["local", "ray"]


class CostsSection(msgspec.Struct, frozen=True):
    """*starting* a trial, *moving* one to other GPUs, and iterations after which a candidate's are known.
    Only simulations need them: a live run measures its own."""

    starting: Duration = Duration(500 * MILLISECOND)
    moving: Duration = Duration(2 * SECOND)
    profile: Iterations = 1


class LiveSection(msgspec.Struct, frozen=True):
    """How a live run trains; what is not written is up to its engine. *packing*: trials that share a GPU are
    processes, or threads in lanes of one; *gate*: under the kernel gate, where there is one. *checkpoints*
    are so far apart in a trial that goes on; *keep*: the best of each candidate beside its newest, or the
    last alone. *patience* with a process that gives no sign of life. A trial fails whose iteration takes more
    than *longest*. *threads* of the CPU for each. *address*: of the Ray cluster."""

    packing: Literal["processes", "lanes"] | None = None
    gate: bool | None = None
    checkpoints: Duration | None = None
    keep: Literal["best", "last"] | None = None
    patience: Duration | None = None
    longest: Duration | None = None
    threads: Threads | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoints", "patience", "longest"):
            if getattr(self, name) is not None:
                check_above_zero(name, getattr(self, name))

    def check(self, engine: EngineName, emulated: bool) -> None:
        if emulated and self.packing == "lanes":
            raise InputError("live.packing", "lanes", "processes: emulated GPUs have no lanes")
        if engine == "local" and self.address is not None:
            raise InputError("live.address", self.address, "engine: ray, which has one")


class KnobEntry(msgspec.Struct, frozen=True):
    """*best* is where on its way from low (0) to high (1) results are best, *weight* how much it matters. At
    its high end an iteration takes *slower* times as long as at its low end."""

    best: Part = 0.5
    weight: Weight = 1.0
    slower: Factor = 1.0


class TaskEntry(msgspec.Struct, frozen=True):
    """A task that is only simulated: how long an iteration takes on a GPU by itself, and how candidates
    learn. Values go from *start* towards *reach*, by e-fold every *patience* iterations."""

    iteration: Duration
    start: float
    reach: float
    patience: Patience
    noise: Noise = 0.0
    spread: Spread = 0.0
    packing: Overhead | None = None
    scaling: Overhead | None = None
    knobs: dict[str, KnobEntry] = {}

    def __post_init__(self) -> None:
        if not self.iteration:
            raise InputError("iteration", "0s", "a duration above 0, such as 2s")
        if self.start == self.reach:
            raise InputError("reach", self.reach, f"another value than start ({self.start:g}): trials learn")

    @property
    def goal(self) -> Goal:
        return "max" if self.reach > self.start else "min"
