"""What a cluster policy may ask for, in the imperative."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from astrarium.core.policy import SetTimer
from astrarium.core.units import Time


class Grant(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Lease these GPUs to an app until then. They must be free, or its own: then the lease is renewed."""

    app: int
    gpus: tuple[int, ...]
    until: Time
    why: str = ""


class Revoke(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Take GPUs back before their lease ends. Whatever runs there is stopped with a checkpoint."""

    app: int
    gpus: tuple[int, ...]
    why: str = ""


class Run(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A job of an app on some of the GPUs that it has. One that runs elsewhere moves there."""

    app: int
    job: int
    gpus: tuple[int, ...]


class Stop(msgspec.Struct, frozen=True, tag=True, gc=False):
    app: int
    job: int


Action: TypeAlias = Grant | Revoke | Run | Stop | SetTimer
