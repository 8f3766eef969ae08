"""What a crew and its slots say to each other. A slot is a process that trains what it is told to."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from astrarium.tuning.live.backend import Ending, Iterated, Work
from astrarium.tuning.live.training import Emulated


class Setup(msgspec.Struct, frozen=True, tag=True):
    """What a slot is for all its life. *device* is what trainings are told; *lanes*: the policy by which runs
    share the process and its GPU, none: one run at a time."""

    device: str = "cpu"
    build: str = ""  # file in which the parcel is
    emulated: Emulated | None = None
    seed: int = 0
    threads: int = 1  # of PyTorch, on a CPU
    beat: float = 1.0  # seconds between signs of life
    lanes: str = ""
    ground: str = ""  # "module:class" of what lanes are made of, where it is not the GPU
    log: str = ""  # file for what trainings print; none: where the crew prints


class Meet(msgspec.Struct, frozen=True, tag=True):
    """A process that keeps the store in which gangs meet, on that address of this machine."""

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
    """Goes to the first member, which tells the others. *drop*: at once, to all, and nothing is saved."""

    trial: int
    run: int
    drop: bool = False


Order: TypeAlias = Begin | Leave


class Ready(msgspec.Struct, frozen=True):
    """The slot is there."""

    pid: int


class Warm(msgspec.Struct, frozen=True):
    """It has loaded all that it needs: a run would begin at once."""


class Beat(msgspec.Struct, frozen=True):
    """It still is."""


class Started(msgspec.Struct, frozen=True):
    """The first iteration begins at *at* (time.monotonic); *parts*: seconds that came before it, by name."""

    trial: int
    run: int
    rank: int
    at: float
    parts: dict[str, float]


class Saved(msgspec.Struct, frozen=True):
    trial: int
    run: int
    iterations: int


class Noted(msgspec.Struct, frozen=True):
    """What a training wants to be known of its candidate; *value* as JSON, which is safe to read."""

    trial: int
    run: int
    name: str
    value: str


class Ended(msgspec.Struct, frozen=True):
    """Of one member. *trouble*: the error came from the connection to the others, and is not its own.
    *last*: when its last iteration ended; *saving*: seconds for the checkpoint after it."""

    trial: int
    run: int
    rank: int
    ending: Ending
    iterations: int = 0
    value: float | None = None
    error: str = ""
    trouble: bool = False
    last: float = 0.0
    saving: float = 0.0


class Gone(msgspec.Struct, frozen=True):
    """Said by the pool, of a slot that ended, or that was silent for too long."""

    why: str


Said: TypeAlias = Ready | Warm | Beat | Started | Iterated | Saved | Noted | Ended | Gone
Packing: TypeAlias = Literal["processes", "lanes"]
