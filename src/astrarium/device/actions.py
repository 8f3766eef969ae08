"""What an iteration policy may ask for, in the imperative."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from astrarium.core.policy import SetTimer

NEW_LANE = -1


class Admit(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Load a job that waits: its persistent memory stays on the GPU, its iterations will run in *lane*.

    A lane that is too small for them is made larger, which it must have room for.
    """

    job: int
    lane: int = NEW_LANE


class Refuse(msgspec.Struct, frozen=True, tag=True, gc=False):
    job: int
    reason: str


class RunIteration(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The next iteration of an admitted job, in its lane, which must be free."""

    job: int


Action: TypeAlias = Admit | Refuse | RunIteration | SetTimer
