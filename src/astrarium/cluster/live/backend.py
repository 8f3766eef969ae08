"""A backend carries out what the live cluster orders, and shows what is there.

The cluster never hears that something happened: it looks, again and again, and compares what is there with
what its books say. A look that was missed, by an arbiter that died or a message that was lost, costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

import msgspec

from astrarium.core.errors import AstrariumError

Ending = Literal["", "finished", "stopped", "resized", "failed", "not found", "lost", "unstarted"]
OnStop = Literal["checkpoint", "restart", "never"]
Processes = Literal["machine", "gpu", "job"]


class RunKey(NamedTuple):
    """The name of a run; by its number, what an earlier run of the job still says is known as late."""

    app: int
    job: int
    run: int


class Sickness(msgspec.Struct, frozen=True):
    """What is wrong with a GPU. *lost*: it cannot be used at all; else what runs there can still write a
    checkpoint."""

    why: str
    lost: bool = False


class MachineStatus(msgspec.Struct, frozen=True):
    """A machine as it was seen: its GPUs, and where it stands. *sick*: those of its GPUs that are, as the
    machine counts them; *watched*: whether anybody would notice."""

    gpus: int
    rack: int = 0
    slot: int = 0
    network: str = ""
    sick: dict[int, Sickness] = {}
    watched: bool = False


class RunStatus(msgspec.Struct, frozen=True):
    """A run as it was seen: *progress* of its work is done, and *kept* in a checkpoint, in parts of 1.
    *ended*: "" while it lives; `not found` where there is no such command; `lost` with its machine, or
    `unstarted` because it was given up before its GPUs were out of use, `resized` where its processes go on
    with other GPUs as a later run. *run*: the number of that later run, as which they go on now. *trouble*:
    what stands in the way of one that goes on, such as a full disk."""

    gpus: tuple[int, ...]
    ended: Ending = ""
    progress: float = 0.0
    kept: float = 0.0
    error: str = ""
    run: int = 0
    trouble: str = ""


class Snapshot(NamedTuple):
    """What was seen at one look: machines by name, and every run that was ordered and not yet forgotten."""

    machines: Mapping[str, MachineStatus]
    runs: Mapping[RunKey, RunStatus]


class JobCommand(msgspec.Struct, frozen=True):
    """The command that a job of an app is, and how it is started and stopped.

    *on_stop*: it writes a `checkpoint` and leaves when it is asked to; or it knows nothing of this, and is
    begun anew (`restart`) or left to run to its end (`never`). *elastic*: it takes and gives up GPUs of its
    machine while it runs. *processes*: one on each `machine` that it is
    on, which sees all of its GPUs there, one for each `gpu`, or one for the whole `job`, on the first of its
    machines. *owner*: the user whose app it is, if that is known.
    """

    command: tuple[str, ...]
    on_stop: OnStop = "checkpoint"
    processes: Processes = "machine"
    env: dict[str, str] = {}
    directory: str = ""
    elastic: bool = False
    owner: str = ""


class RunPart(msgspec.Struct, frozen=True):
    """The part of a run on one machine, with its GPUs as that machine counts them."""

    machine: str
    gpus: tuple[int, ...]


class Order(msgspec.Struct, frozen=True):
    """It starts a run. *gpus* as the cluster counts them; *parts* in the order of ranks."""

    key: RunKey
    app: str
    gpus: tuple[int, ...]
    parts: tuple[RunPart, ...]
    task: JobCommand
    phase: int = 0

    @property
    def active(self) -> tuple[RunPart, ...]:
        """Return the parts that have processes."""
        return self.parts[:1] if self.task.processes == "job" else self.parts


class Fenced(AstrariumError):
    """An order of an arbiter that has been superseded was refused."""


class Backend(Protocol):
    """The machines on which jobs run."""

    def enter(self, epoch: int) -> None:
        """Let an arbiter of this number take over; what one of a smaller number still orders is refused."""

    def look(self) -> Snapshot:
        """Return what is there now, every run that was ordered and not yet forgotten included."""

    def start(self, order: Order) -> None:
        """Start a run from the newest checkpoint of its job; one that was ordered before is left alone."""

    def stop(self, key: RunKey) -> None:
        """Ask a run to write a checkpoint and to leave; make it, if it does not. Ask once or often."""

    def forget(self, key: RunKey) -> None:
        """Forget a run that has ended, once that is in the books."""

    def resize(self, key: RunKey, order: Order) -> bool:
        """Have the processes of a run go on as the run of this order, with its GPUs; False: they cannot. The
        status tells when they do. Those that do not, in the time for leaving, are stopped."""

    def retry(self, machine: str, gpu: int) -> None:
        """Judge the health of a GPU anew, whatever it was before."""


class OpenBackend(Backend, Protocol):
    """A backend as a cluster runs it: it may hold connections and threads until it is closed."""

    def close(self) -> None:
        """Leave the machines to the next arbiter."""

    def bring_logs(self, app: str, seconds: float) -> None:
        """Bring what an app has written to where logs are read, within so many seconds; *app*: its folder."""
