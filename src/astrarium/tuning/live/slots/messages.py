"""A backend and its slots exchange these messages."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from astrarium.tuning.live.backend import Ending, Iterated, Work
from astrarium.tuning.live.training.workers import Emulated
from astrarium.tuning.samplers import Goal

Keep: TypeAlias = Literal["best", "last"]


class SlotSetup(msgspec.Struct, frozen=True, tag=True):
    """The setup holds for a slot's whole life. *device* is where trainings train; *lanes* is the policy by
    which runs share the process and its GPU; empty: one run at a time."""

    device: str = "cpu"
    build: str = ""  # file in which the packed build is
    emulated: Emulated | None = None
    seed: int = 0
    threads: int = 1  # of PyTorch, on a CPU
    beat: float = 1.0  # seconds between signs of life
    lanes: str = ""
    lane_backend: str = ""  # "module:class" of the lane backend, where it is not PyTorch's
    log: str = ""  # file for what trainings print; none: where the backend prints
    goal: Goal = "min"
    target: float | None = None  # a value that ends the search
    metric: str = ""  # the name of the value, where trainings report several numbers
    keep: Keep = "best"  # which checkpoints are kept beside those that trials end with and the newest


class RendezvousSetup(msgspec.Struct, frozen=True, tag=True):
    """The process keeps the store in which gangs meet, on that address of this machine."""

    host: str


class Begin(msgspec.Struct, frozen=True):
    """Train as member *rank* of *size*, who meet in *store* under the name *group*."""

    work: Work
    folder: str  # of checkpoints
    every: float  # seconds between checkpoints
    rank: int = 0
    size: int = 1
    store: tuple[str, int] | None = None
    group: str = ""


class Leave(msgspec.Struct, frozen=True):
    """Leave the run. The order goes to the first member, which tells the others. *drop*: at once, to all, and
    nothing is saved."""

    trial: int
    run: int
    drop: bool = False


Order: TypeAlias = Begin | Leave


class SlotReady(msgspec.Struct, frozen=True):
    """The slot's process is up."""

    pid: int


class Warm(msgspec.Struct, frozen=True):
    """The slot has loaded all that it needs: a run would begin at once."""


class Beat(msgspec.Struct, frozen=True):
    """The slot is still alive."""


class Saved(msgspec.Struct, frozen=True):
    """A run has written a checkpoint; *best*: its candidate was never worth more."""

    trial: int
    run: int
    iterations: int
    best: bool = False


class Noted(msgspec.Struct, frozen=True):
    """A training has noted something about its candidate; *value* is JSON, which is safe to read."""

    trial: int
    run: int
    name: str
    value: str


class MemberEnded(msgspec.Struct, frozen=True):
    """A member's run has ended. *trouble*: the error came from the connection to other members, and is not
    its own."""

    trial: int
    run: int
    rank: int
    ending: Ending
    iterations: int = 0
    value: float | None = None
    error: str = ""
    trouble: bool = False


class Gone(msgspec.Struct, frozen=True):
    """The slot has ended, or was silent for too long; its pool says so."""

    why: str


Message: TypeAlias = SlotReady | Warm | Beat | Iterated | Saved | Noted | MemberEnded | Gone
Packing: TypeAlias = Literal["processes", "lanes"]
