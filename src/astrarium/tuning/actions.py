"""What a tuning policy may ask for, in the imperative."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from astrarium.core.policy import SetTimer
from astrarium.tuning.places import Place


class Put(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Run a trial there. One that runs elsewhere moves at the end of its iteration; until then it has both
    places."""

    trial: int
    place: Place
    why: str = ""


class Pause(msgspec.Struct, frozen=True, tag=True, gc=False):
    """At the end of its iteration."""

    trial: int
    why: str = ""


Action: TypeAlias = Put | Pause | SetTimer
