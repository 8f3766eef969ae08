"""The board of a GPU shows its clients, the policy, and what each client has launched and waited for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.errors import AstrariumError, InputError, one_of
from astrarium.core.optional import extension
from astrarium.core.quantities import Time

SHARED_MEMORY = Path("/dev/shm")
BOARD_VARIABLE = "ASTRARIUM_GATE_BOARD"
NOT_BUILT = "the compiled module astrarium._gate, which this installation does not have"


class LaunchView(msgspec.Struct, frozen=True):
    """A launch has a duration, a number of SMs and a kind, as far as the gate knows."""

    duration: Time  # 0: not measured yet
    sms: int
    kind: str


class ClientCounts(msgspec.Struct, frozen=True):
    """The counts of a client begin when it comes."""

    kernels: int
    graphs: int
    copies: int
    captured: int  # besides: into graphs, which did not run them
    held: int
    held_ns: Time
    beside: int
    unknown: int
    requests: int
    partitioned: int
    fences: int
    busy_ns: Time  # of latency clients: how long those of their requests took that were timed
    ran: int  # kernels and graphs that the driver says it ran; 0: not counted
    waits: dict[str, int]


class ClientView(msgspec.Struct, frozen=True):
    """A client is a program, or a thread of one, that shares the GPU."""

    place: int
    pid: int
    name: str
    kind: str  # latency or best-effort
    touched: Time
    waiting: str | None  # for what a launch is held
    in_request: bool
    phases: int
    work: LaunchView
    alone: Time
    last: Time
    beside: dict[str, Time]
    harm: dict[str, float]  # latency: what each ns of it costs a request, as far as is learnt
    counts: ClientCounts
    running: bool
    in_flight: int
    in_flight_ns: Time

    @property
    def launches(self) -> int:
        return self.counts.kernels + self.counts.graphs + self.counts.copies

    @property
    def coverage(self) -> float | None:
        """Return the share of what the driver ran that the gate saw; None where that was not counted."""
        seen = self.counts.kernels + self.counts.graphs
        return seen / self.counts.ran if self.counts.ran else None

    @property
    def slowdown(self) -> float | None:
        """Return how many times as long the last request took as one that is alone."""
        return self.last / self.alone if self.last and self.alone else None


class BoardView(msgspec.Struct, frozen=True):
    """The extension makes a view of the board's memory; times are those of the monotonic clock."""

    path: str
    now: Time
    sms: int
    policy: str
    settings: dict[str, int | float]
    most_sms: int
    clients: list[ClientView]


def native() -> Any:
    module = extension("_gate")
    if module is None:
        raise AstrariumError(f"the board needs {NOT_BUILT}")
    return module


def board_path(gpu: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of a GPU's board. CUDA_VISIBLE_DEVICES names the *gpu*: a number or a UUID."""
    configured = environ.get(BOARD_VARIABLE)
    name = re.sub(r"[^\w-]", "-", gpu)
    return Path(configured) if configured else SHARED_MEMORY / f"astrarium-gate-{os.getuid()}-{name}"


class Board:
    """A board is made where there is none; *policy* and *sms* count only then."""

    def __init__(self, path: Path, policy: str | None = None, sms: int | None = None) -> None:
        settings = {"policy": policy, "sms": sms}
        options = {name: value for name, value in settings.items() if value is not None}
        try:
            self._board = native().Board(str(path), **options)
        except ValueError as error:
            raise _refused(error, options) from None

    @classmethod
    def find(cls, path: Path) -> Board | None:
        """Return the board at that path, or None where there is none."""
        return cls(path) if path.exists() else None

    def view(self) -> BoardView:
        try:
            return msgspec.convert(self._board.snapshot(), BoardView)
        except ValueError as error:
            raise _refused(error, {}) from None

    def change(self, policy: str | None = None, settings: Mapping[str, float] | None = None) -> None:
        """Change policy and settings: all of them or, where something is wrong, nothing. A new policy begins
        with its defaults; what was learnt stays."""
        try:
            self._board.set_policy(policy, **(settings or {}))
        except ValueError as error:
            raise _refused(error, {"policy": policy, **(settings or {})}) from None

    def sweep(self) -> int:
        """Free the places of processes that have ended, and return how many there were."""
        try:
            freed: int = self._board.sweep()
        except ValueError as error:
            raise _refused(error, {}) from None
        return freed


def _refused(error: ValueError, options: Mapping[str, object]) -> InputError:
    field, _, expected = str(error).partition(": expected ")
    value = options.get(field)
    if expected.endswith("of this version"):
        expected += "; remove it when no program uses it any more"
    if expected.startswith("one of "):
        value = field if field != "policy" else value
        expected = one_of(expected.removeprefix("one of ").split(", "), value)
    return InputError(field, value, expected)
