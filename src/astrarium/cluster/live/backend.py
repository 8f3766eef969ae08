"""What the live engine asks of the machines, and what it sees there.

It never hears that something happened: it looks, again and again, and compares what is there with what its
books say. A look that was missed, by an arbiter that died or a message that was lost, costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

import msgspec

Ending = Literal["", "finished", "stopped", "failed", "lost", "unstarted"]
OnStop = Literal["checkpoint", "restart", "never"]
Processes = Literal["machine", "gpu", "job"]


class RunKey(NamedTuple):
    """A run has a number of its own: what an earlier run of the job still does or says is known as late."""

    app: int
    job: int
    run: int


class MachineSeen(msgspec.Struct, frozen=True):
    gpus: int
    rack: int = 0
    slot: int = 0
    network: str = ""


class RunSeen(msgspec.Struct, frozen=True):
    """*progress* of its work is done, and *kept* in a checkpoint: parts of 1. *ended*: "" while it lives;
    `lost` with its machine, or `unstarted` because it was given up before its GPUs were out of use."""

    gpus: tuple[int, ...]
    ended: Ending = ""
    progress: float = 0.0
    kept: float = 0.0
    error: str = ""


class Picture(NamedTuple):
    """Machines by name, and every run that was ordered and not yet forgotten, on whichever machines."""

    machines: Mapping[str, MachineSeen]
    runs: Mapping[RunKey, RunSeen]


class Task(msgspec.Struct, frozen=True):
    """What a job of an app is: a command.

    *on_stop*: it writes a `checkpoint` and leaves when it is asked to; or it knows nothing of this, and is
    begun anew (`restart`) or left to run to its end (`never`). *processes*: one on each `machine` that it
    is on, which sees all of its GPUs there, one for each `gpu`, or one for the whole `job`, on the first of
    its machines.
    """

    command: tuple[str, ...]
    on_stop: OnStop = "checkpoint"
    processes: Processes = "machine"
    env: dict[str, str] = {}
    directory: str = ""


class Part(msgspec.Struct, frozen=True):
    """Of a run: the GPUs of one machine, as that machine counts them."""

    machine: str
    gpus: tuple[int, ...]


class Order(msgspec.Struct, frozen=True):
    """*gpus* as the cluster counts them; *parts* in the order of ranks."""

    key: RunKey
    app: str
    gpus: tuple[int, ...]
    parts: tuple[Part, ...]
    task: Task
    phase: int = 0

    @property
    def active(self) -> tuple[Part, ...]:
        """Parts that have processes."""
        return self.parts[:1] if self.task.processes == "job" else self.parts


class Backend(Protocol):
    """Machines on which jobs run."""

    def enter(self, epoch: int) -> None:
        """An arbiter of this number takes over; what others of smaller numbers still order is refused."""

    def look(self) -> Picture:
        """What is there now. A run that was ordered is in the picture from then on, until it is forgotten."""

    def start(self, order: Order) -> None:
        """From the newest checkpoint of its job. A run that was ordered before is not started again."""

    def stop(self, key: RunKey) -> None:
        """Ask it to write a checkpoint and to leave; make it, if it does not. Ask once or often."""

    def forget(self, key: RunKey) -> None:
        """It has ended, and that is in the books."""
