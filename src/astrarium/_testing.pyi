"""What tests and benchmarks see of native code, and users do not."""

from collections.abc import Callable, Sequence
from typing import Any

import astrarium._front
import astrarium._simulator
from astrarium._front import Shape
from astrarium._scheduler import Batches, Blame, Ended, QuarantinedInput, Written
from astrarium.core.arrivals import Bools, Ints
from astrarium.core.processes import Floats

PoppedTicket = tuple[
    int,  # a number to end it by
    int,  # model
    int,  # rows
    int,  # the application's number
    int,  # received
    int,  # deadline
    int,  # offset of its inputs
    int,  # offset for its answers
    int,  # bytes there
    list[tuple[list[int], int]],  # shapes and bytes of its inputs
    int,  # timeout, in microseconds
    int,  # priority
    str,  # application
    int,  # patience
]

class HullQueue:
    """Twin of serving.policies.orloj.hull.HullQueue, with many steps in one call."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, id: int) -> bool: ...
    def insert(self, id: int, alpha: float, beta: float) -> None:
        """Add a member with its line."""

    def remove(self, id: int) -> None:
        """Remove a member."""

    def best(self, slope: float) -> int:
        """Return the member that is best at a slope."""

    def clear(self) -> None:
        """Remove all members."""

    def depth(self) -> int:
        """Return how many inner nodes lead to the deepest leaf."""

    def insert_all(self, first: int, points: Floats) -> None:
        """Add members with the lines in the rows, alpha and beta; their ids count up from *first*."""

    def remove_all(self, first: int, count: int) -> None:
        """Remove so many members whose ids count up from *first*."""

    def best_of_all(self, slopes: Floats) -> list[int]:
        """Return the best member at each slope."""

def simulate_timed(
    setup: astrarium._simulator.Setup,
    truth: astrarium._simulator.Truth,
    parameters: astrarium._simulator.Parameters,
    time: Ints,
    deadline: Ints,
    model: Ints,
    work: Ints,
    application: Ints | None,
    profiled: Bools | None,
    profiler_delay: int,
) -> dict[str, Any]:
    """Simulate as `simulate_serving` does; the record also says when the policy decided (`decision_at`) and
    how long that took (`decision_ns`)."""

class Loopback:
    """A loopback stands in for the scheduler and the workers: it answers calls with their own inputs, or ends
    them as it is asked."""

    def __init__(self, exchange: astrarium._front.Exchange) -> None: ...
    def start(self) -> None:
        """End tickets in a thread of its own, until it is stopped."""

    def stop(self) -> None:
        """End that thread."""

    def end_with(self, outcome: str, cause: str = "", reason: str = "") -> None:
        """Let the thread end tickets like this from now on."""

    def fd(self) -> int:
        """Return a descriptor that can be read while there is something to pop."""

    def pop(self) -> list[PoppedTicket]:
        """Take all tickets that have come."""

    def end(
        self,
        number: int,
        outcome: str = "in_time",
        cause: str = "",
        reason: str = "",
        shapes: Sequence[Sequence[tuple[Shape, int]]] = (),
    ) -> None:
        """End a ticket that was popped. The shapes are those of the outputs, with their bytes, by row; none:
        the model's."""

    def plan(self, models: Sequence[tuple[int, Sequence[int]]], gpus: int) -> None:
        """Let the admission plan with these models: the objective of each, and how long batches of 0, 1, ...
        take."""

class Steps:
    """The scheduler alone, in a time that the caller makes."""

    def __init__(self, models: int, gpus: int, memory: memoryview | None = None) -> None: ...
    def begin(
        self, setup: astrarium._simulator.Setup, parameters: astrarium._simulator.Parameters, now: int
    ) -> None:
        """Let a fresh native policy decide from now on."""

    def begin_in_python(
        self, setup: astrarium._simulator.Setup, name: str, make: Callable[[], object], now: int
    ) -> None:
        """Let what *make* returns decide, and another one each time that it fails."""

    def profile(self, share: float, seed: int) -> None:
        """Tell policies that listen what this share of the requests would have taken alone."""

    def release(self, model: int) -> int:
        """Let a model's refused inputs in again, and return how many there were."""

    def arrive(
        self,
        number: int,
        model: int,
        rows: int,
        application: int,
        times: tuple[int, int],
        blocks: tuple[int, int, int],
        shapes: Sequence[Written] | None,
        length: int,
        now: int,
    ) -> None:
        """Hand in a call, as to `Scheduler.arrive`."""

    def close(self) -> None:
        """End all that is open; the policy is asked no more."""

    def step(self, now: int) -> tuple[int, list[tuple[int, bytes]], list[Ended]]:
        """Decide, and return when to step again, orders by worker, and the calls that have ended."""

    def worker_joined(self, worker: int, now: int) -> None:
        """Let a worker have batches."""

    def worker_left(self, worker: int, reason: str, by_its_work: bool, tag: int, now: int) -> Blame:
        """Give a lost worker's requests back to the policy, and return who is to blame."""

    def set_apart(self, model: int, workers: Sequence[int], now: int) -> None:
        """Let a model have workers of its own, one for each GPU; none: no more."""

    def hear(self, worker: int, packet: bytes, now: int) -> bool:
        """Hear a worker, and return whether it spoke of a batch."""

    @property
    def admission(self) -> astrarium._front.Admission:
        """The admission that it publishes to."""

    def quarantined(self, now: int) -> list[QuarantinedInput]:
        """Return the inputs that are refused."""

    def batches(self) -> Batches:
        """Return what became of batches since the last time."""

    def waiting(self) -> int:
        """Return how many requests wait for the policy."""

    def retried(self, model: int) -> int:
        """Return how many calls of a model were tried again."""

    def held(self) -> int:
        """Return how many calls have arrived and not ended, counted where they lie."""

    def policy_errors(self) -> tuple[int, str]:
        """Return how often the policy has failed, and the last error."""

    def oldest(self, worker: int) -> tuple[int, int] | None:
        """Return the tag of a worker's oldest batch and how long it may take, or None."""

def feed(
    setup: astrarium._simulator.Setup,
    parameters: astrarium._simulator.Parameters,
    requests: int,
    per_second: float,
    turn: int,
    profiled_share: float = 0.0,
) -> tuple[int, int, int, int]:
    """Feed the scheduler so many requests at a rate, heard every *turn*, and return how many were answered
    and dropped, and how many batches and steps that took."""

def serve_clients(
    setup: astrarium._simulator.Setup,
    parameters: astrarium._simulator.Parameters,
    phases: Sequence[tuple[int, int, float]],
    way: int = 0,
    slower: float = 1.0,
    lengths: Sequence[int] = (),
) -> list[tuple[int, int, int, int]]:
    """Serve clients in virtual time: of each phase until when it lasts, how many clients send again when they
    have their answer, and how many calls a second others send. A call takes *way* to the server, batches
    *slower* times what the setup says; calls have *lengths*, one after the other. Return how many calls of
    each phase were in time, late, dropped and refused."""

def read_blocks(blocks: Sequence[bytes], table: int) -> list[tuple[list[tuple[bytes, bytes]], int]] | None:
    """Return the fields of header blocks that follow each other, with the bytes in the table after each; None
    where one cannot be read."""
