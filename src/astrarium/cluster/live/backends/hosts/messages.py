"""What an agent and its arbiter say to each other.

An agent joins, is welcomed, and then reports; each answer to a report has the orders that it has not yet
carried out. Checkpoints and logs go over connections of their own, whose first messages are here too.
"""

from __future__ import annotations

import msgspec

from astrarium.cluster.live.backend import JobCommand, MachineStatus, RunKey, Sickness
from astrarium.cluster.live.backends.hosts.checkpoints import Checkpoint
from astrarium.cluster.live.machine.parts import PartOrder, PartStatus

AGENT = "agent"  # the name under which agents show their key


class Join(msgspec.Struct, frozen=True, tag=True):
    """The first message of an agent: which machine it is, and what it was when it was last here. *fresh*:
    whatever it ran then has ended."""

    name: str
    machine: MachineStatus
    address: str
    device_base: int
    cluster: str
    number: int
    fresh: bool
    held: list[Checkpoint]


class Welcome(msgspec.Struct, frozen=True, tag=True):
    cluster: str
    number: int
    epoch: int
    every: float  # seconds between reports


class Refusal(msgspec.Struct, frozen=True, tag=True):
    why: str


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """Yes, go on; or: it is done."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """An agent sends one at every look. *done*: the number of the last order that it has carried out;
    *troubles*: why checkpoints could not be brought here; *sick*, *watched*: the health of its GPUs, as in
    MachineStatus."""

    done: int
    parts: list[PartStatus]
    held: list[Checkpoint]
    ports: list[int]
    troubles: list[tuple[Checkpoint, str]]
    sick: dict[int, Sickness] = {}
    watched: bool = False


class StartPart(msgspec.Struct, frozen=True, tag=True):
    """Start a part; the checkpoint that it names lies there already, in the folder of the agent's jobs."""

    part: PartOrder


class StopRun(msgspec.Struct, frozen=True, tag=True):
    key: RunKey


class ForgetRun(msgspec.Struct, frozen=True, tag=True):
    key: RunKey


class SendCheckpoint(msgspec.Struct, frozen=True, tag=True):
    held: Checkpoint


class ClearCheckpoint(msgspec.Struct, frozen=True, tag=True):
    held: Checkpoint


class FetchCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """Fetch a checkpoint for a job, whose owner will read it."""

    held: Checkpoint
    task: JobCommand


class SendLogs(msgspec.Struct, frozen=True, tag=True):
    """*have*: the bytes of each log of the app that the arbiter has."""

    app: str
    number: int
    have: dict[str, int]


class RetryGpu(msgspec.Struct, frozen=True, tag=True):
    """Judge a GPU anew; *gpu* as the machine counts."""

    gpu: int


HostOrder = (
    StartPart | StopRun | ForgetRun | SendCheckpoint | FetchCheckpoint | ClearCheckpoint | SendLogs | RetryGpu
)


class Orders(msgspec.Struct, frozen=True, tag=True):
    orders: list[tuple[int, HostOrder]]


class PutCheckpoint(msgspec.Struct, frozen=True, tag=True):
    held: Checkpoint


class GetCheckpoint(msgspec.Struct, frozen=True, tag=True):
    held: Checkpoint


class PutLogs(msgspec.Struct, frozen=True, tag=True):
    number: int


class LogPiece(msgspec.Struct, frozen=True):
    """Answers `SendLogs`, as many as it takes; the last one of all has no path."""

    path: str = ""
    offset: int = 0
    body: bytes = b""
