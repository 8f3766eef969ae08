"""Live lanes with threads and no GPU: turns as the policy gives them, and failures that stay alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Barrier, Event, Thread
from time import monotonic_ns

import pytest

from astrarium.core.engine import Engine
from astrarium.core.trace import Step
from astrarium.device.ledger import Outcome
from astrarium.device.live import MEASURED, Ended, Needs, SharedGpu
from astrarium.device.registry import iteration_policies
from astrarium.device.state import DeviceState
from astrarium.drivers.replay import replay

PATIENCE = 20.0


class FakeGround:
    """Counts; no two turns of a lane may overlap."""

    capacity = 100

    def __init__(self) -> None:
        self.turns: list[tuple[int, int]] = []  # lane, size
        self.inside: dict[int, int] = {}
        self.closed: list[int] = []
        self.needs = Needs(5, 40, 1000)

    @contextmanager
    def turn(self, lane: int, size: int) -> Iterator[None]:
        self.inside[lane] = self.inside.get(lane, 0) + 1
        assert self.inside[lane] == 1, "two iterations in one lane"
        self.turns.append((lane, size))
        try:
            yield
        finally:
            self.inside[lane] -= 1

    @contextmanager
    def measured(self) -> Iterator[Callable[[], Needs]]:
        assert not any(self.inside.values()), "measured while others ran"
        yield lambda: self.needs

    def close(self, lane: int) -> None:
        self.closed.append(lane)


def gpu_with(policy: str, ground: FakeGround, steps: list[Step] | None = None) -> SharedGpu:
    record = steps.append if steps is not None else None
    return SharedGpu(iteration_policies.get(policy)(), ground, monotonic_ns, record)


def together(*work: Callable[[], object]) -> None:
    threads = [Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "it never ended"


def test_turns_are_taken_as_the_policy_says_and_never_two_at_once() -> None:
    ground, order = FakeGround(), list[int]()
    gpu, both = gpu_with("fair", ground), Barrier(2)

    def work(number: int) -> None:
        with gpu.job(f"job{number}", ground.needs, iterations=50) as job:
            both.wait(PATIENCE)
            for _ in range(50):
                with job.iteration():
                    order.append(number)

    together(lambda: work(0), lambda: work(1))
    rows = gpu.rows()
    assert [row.outcome for row in rows] == [Outcome.FINISHED] * 2
    assert [row.done for row in rows] == [50, 50]
    assert len(ground.turns) == 100
    assert ground.closed


def test_fifo_keeps_the_gpu_for_the_first() -> None:
    ground, order = FakeGround(), list[int]()
    gpu = gpu_with("fifo", ground)

    def work(number: int) -> None:
        with jobs[number].iteration():
            order.append(number)

    with gpu.job("first", ground.needs, 3) as first, gpu.job("second", ground.needs, 2) as second:
        jobs = [first, second]
        second_thread = Thread(target=lambda: [work(1), work(1)], daemon=True)
        second_thread.start()
        for _ in range(3):
            work(0)
        second_thread.join(PATIENCE)
    assert order == [0, 0, 0, 1, 1]


def test_what_a_job_needs_is_measured_while_nobody_else_runs() -> None:
    ground = FakeGround()
    gpu = gpu_with("pack", ground)

    def work() -> None:
        with gpu.job("unknown") as job:
            for _ in range(MEASURED + 5):
                with job.iteration():
                    pass

    together(work, work, work)
    for row in gpu.rows():
        assert (row.job.persistent, row.job.ephemeral) == (5, 40)
        assert (row.done, row.outcome) == (MEASURED + 5, Outcome.WITHDRAWN)


def test_a_newcomer_is_measured_however_busy_the_gpu_is() -> None:
    ground, newcomer_done = FakeGround(), Event()
    gpu = gpu_with("fair", ground)

    def busy() -> None:
        with gpu.job("busy", ground.needs) as job:
            while not newcomer_done.is_set():
                with job.iteration():
                    pass

    def newcomer() -> None:
        with gpu.job("newcomer") as job:
            for _ in range(MEASURED + 2):
                with job.iteration():
                    pass
        newcomer_done.set()

    together(busy, newcomer)
    assert {row.job.name: row.done for row in gpu.rows()}["newcomer"] == MEASURED + 2


def test_one_jobs_out_of_memory_is_its_own() -> None:
    ground = FakeGround()
    gpu = gpu_with("fair", ground)

    def fails() -> None:
        with gpu.job("greedy", ground.needs, 10) as job, pytest.raises(MemoryError), job.iteration():
            raise MemoryError("no more")

    def works() -> None:
        with gpu.job("modest", ground.needs, 10) as job:
            for _ in range(10):
                with job.iteration():
                    pass

    together(fails, works)
    found = {row.job.name: (row.outcome, row.reason) for row in gpu.rows()}
    assert found == {"greedy": (Outcome.FAILED, "MemoryError: no more"), "modest": (Outcome.FINISHED, "")}


@pytest.mark.parametrize("done", [0, 1, MEASURED])
def test_a_job_that_ends_while_it_is_measured_is_in_the_books(done: int) -> None:
    gpu = gpu_with("fair", FakeGround())
    with gpu.job("short", iterations=MEASURED) as job:
        for _ in range(done):
            with job.iteration():
                pass
    [row] = gpu.rows()
    assert (row.done, row.outcome) == (done, Outcome.FINISHED if done == MEASURED else Outcome.WITHDRAWN)


@pytest.mark.parametrize("needs", [None, Needs(5, 40, 1)])
def test_a_job_that_fails_between_its_turns_has_failed(needs: Needs | None) -> None:
    gpu = gpu_with("fair", FakeGround())

    def reads() -> None:
        with gpu.job("reader", needs) as job:
            with job.iteration():
                pass
            raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        reads()
    [row] = gpu.rows()
    assert (row.outcome, row.reason, row.done) == (Outcome.FAILED, "OSError: no data", 1)


def test_a_job_that_can_never_fit_is_told_why() -> None:
    gpu = gpu_with("fifo", FakeGround())
    with (
        gpu.job("huge", Needs(50, 60, 1)) as job,
        pytest.raises(Ended, match="job huge: it needs 110 bytes, and the GPU has 100"),
        job.iteration(),
    ):
        raise AssertionError("never its turn")


def test_what_was_decided_live_replays() -> None:
    ground, steps = FakeGround(), list[Step]()
    gpu = gpu_with("srtf", ground, steps)

    def work(iterations: int) -> Callable[[], None]:
        def run() -> None:
            with gpu.job("one", ground.needs, iterations) as job:
                for _ in range(iterations):
                    with job.iteration():
                        pass

        return run

    together(work(5), work(9), work(2))
    fresh = Engine(DeviceState(ground.capacity), iteration_policies.get("srtf")())
    assert replay(fresh, steps) is None
