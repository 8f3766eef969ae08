"""The thread that asks a policy and sends batches to workers."""

from collections.abc import Callable, Sequence

import astrarium._front
import astrarium._simulator

Written = tuple[Sequence[int], int]  # a tensor's shape and bytes
Ended = tuple[
    int,  # the number of the call
    int,  # its outcome
    str,  # its cause
    str,  # its reason
    list[list[tuple[tuple[int, ...], int]]] | None,  # shape and bytes of outputs, by row
    bool,  # it was tried again
    tuple[int, int, int, int, int, int, int],  # batch, GPU, size, dispatched, planned end, started, finished
]
BatchSums = tuple[list[int], int, int, dict[int, tuple[int, int]], int, int]  # as `BatchesDone`
KeptGpu = tuple[int, int, int, int]  # finished, size, for how long it kept its GPU, bucket
Batches = tuple[
    list[tuple[int, BatchSums, list[KeptGpu]]],  # by model
    list[tuple[int, int, int]],  # GPU, when a second began, how long it was busy in it
]
Blame = tuple[int, int, bool]  # model (-1: none), how many of its calls, whether for certain
QuarantinedInput = tuple[int, int, int, int, str]  # model, digest, since, until, reason

class Scheduler:
    """The scheduler in a thread of its own."""

    def __init__(self, exchange: astrarium._front.Exchange, gpus: int) -> None: ...
    @property
    def admission(self) -> astrarium._front.Admission:
        """The admission of the exchange."""

    def start(self) -> None:
        """Start the thread. Who hands in a call while no batch is under way may decide in its place."""

    def stop(self) -> None:
        """End the thread; all stays as it is."""

    def turn(self) -> int:
        """Hear all workers, decide and send, and return when the next turn is due."""

    def close(self) -> None:
        """End all that is open; what arrives later is not looked at any more."""

    def bell(self) -> int:
        """Return a descriptor that can be read while something waits in `ended`, `packets` or `troubles`."""

    def cpu_ns(self) -> int:
        """Return the CPU time that the thread has had."""

    def packets(self) -> list[tuple[int, bytes]]:
        """Take what workers said that is about no batch."""

    def troubles(self) -> list[tuple[int, str]]:
        """Take the workers that cannot be sent orders, and why."""

    def begin(self, setup: astrarium._simulator.Setup, parameters: astrarium._simulator.Parameters) -> None:
        """Let a fresh native policy decide from now on."""

    def begin_in_python(
        self, setup: astrarium._simulator.Setup, name: str, make: Callable[[], object]
    ) -> None:
        """Let what *make* returns decide (`PythonPolicy`), and another one each time that it fails."""

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
        length: int = 0,
    ) -> bool:
        """Hand in a call that Python has read, and return whether there was place for it. It has *times* when
        it was received and is due, and *blocks*: where inputs lie, where answers go, and the bytes for them;
        *length* is that of each row."""

    def ended(self) -> list[Ended]:
        """Take the calls of Python that have ended."""

    def worker_joined(self, worker: int) -> None:
        """Let a worker have batches, now that it has its models."""

    def worker_left(self, worker: int, reason: str, by_its_work: bool, tag: int) -> Blame:
        """Give a lost worker's requests back to the policy, and return who is to blame; *tag* is of the batch
        that its last words named, or -1."""

    def set_apart(self, model: int, workers: Sequence[int]) -> None:
        """Let a model have workers of its own, one for each GPU; none: it is with the others again."""

    def watch(self, worker: int, socket: int) -> None:
        """Hear a worker from now on, and send it orders."""

    def forget(self, worker: int) -> None:
        """Hear what is left of a worker's messages, and then no more of it."""

    def quarantined(self) -> list[QuarantinedInput]:
        """Return the inputs that are refused."""

    def batches(self) -> Batches:
        """Return what became of batches since the last time."""

    def waiting(self) -> int:
        """Return how many requests wait for the policy."""

    def retried(self, model: int) -> int:
        """Return how many calls of a model were tried again after a worker was lost."""

    def astray(self, open_in_python: int) -> int:
        """Return how many calls are not where the books say."""

    def policy_errors(self) -> tuple[int, str]:
        """Return how often the policy has failed, and the last error."""

    def oldest(self, worker: int) -> tuple[int, int] | None:
        """Return the tag of a worker's oldest batch and how long it may take, or None."""

    def thinks_since(self) -> int:
        """Return since when a policy in Python decides, or 0: no worker is heard until it has."""
