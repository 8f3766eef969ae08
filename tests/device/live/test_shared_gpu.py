"""Live lanes with threads and no GPU: turns as the policy gives them, and failures that stay alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from threading import Barrier, Event, Thread
from time import monotonic_ns

import pytest

from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.trace import Step
from astrarium.device.contract import NeedsChanged
from astrarium.device.ledger import Outcome
from astrarium.device.live.backend import Excess, Needs
from astrarium.device.live.charges import MEASURED
from astrarium.device.live.errors import JobEnded, MemoryWarning, OutOfTurn
from astrarium.device.live.shared_gpu import SharedGpu
from astrarium.device.policies import iteration_policies
from astrarium.device.state import DeviceState
from astrarium.run.replay import replay
from astrarium.testing.plain_backend import PlainLaneBackend

PATIENCE = 20.0


def gpu_with(policy: str, backend: PlainLaneBackend, steps: list[Step] | None = None) -> SharedGpu:
    record = steps.append if steps is not None else None
    return SharedGpu(iteration_policies.get(policy)(), backend, monotonic_ns, record)


def together(*work: Callable[[], object]) -> None:
    """What fails in a thread fails here."""
    with ThreadPoolExecutor(len(work)) as threads:
        for done in [threads.submit(function) for function in work]:
            done.result(PATIENCE)


def test_all_have_their_turns_and_never_two_at_once() -> None:
    """In which order: test_device_order.py."""
    backend = PlainLaneBackend()
    gpu = gpu_with("fair", backend)
    both = Barrier(2)

    def work(number: int) -> None:
        with gpu.job(f"job{number}", backend.needs, iterations=50) as job:
            both.wait(PATIENCE)
            for _ in range(50):
                with job.iteration():
                    pass

    together(lambda: work(0), lambda: work(1))
    rows = gpu.rows()
    assert [row.outcome for row in rows] == [Outcome.FINISHED] * 2
    assert [row.done for row in rows] == [50, 50]
    assert len(backend.turns) == 100
    assert backend.closed


def test_fifo_keeps_the_gpu_for_the_first() -> None:
    backend = PlainLaneBackend()
    order = list[int]()
    second_is_there = Event()
    gpu = gpu_with("fifo", backend)

    def second() -> None:
        with gpu.job("second", backend.needs, 2) as job:
            second_is_there.set()
            for _ in range(2):
                with job.iteration():
                    order.append(1)

    with gpu.job("first", backend.needs, 3) as first:
        thread = Thread(target=second, daemon=True)
        thread.start()
        assert second_is_there.wait(PATIENCE)
        for _ in range(3):
            with first.iteration():
                order.append(0)
        thread.join(PATIENCE)
    assert order == [0, 0, 0, 1, 1]


def test_what_a_job_needs_is_measured_while_nobody_else_runs() -> None:
    backend = PlainLaneBackend()
    gpu = gpu_with("pack", backend)
    all_made = Barrier(3)

    def work() -> None:
        with gpu.job("unknown") as job:
            for _ in range(MEASURED + 5):
                with job.iteration():
                    pass
            all_made.wait(PATIENCE)

    together(work, work, work)
    for row in gpu.rows():
        assert (row.job.persistent, row.job.ephemeral) == (5, 40)
        assert (row.done, row.outcome) == (MEASURED + 5, Outcome.WITHDRAWN)


def test_a_newcomer_is_measured_however_busy_the_gpu_is() -> None:
    backend = PlainLaneBackend()
    newcomer_done = Event()
    gpu = gpu_with("fair", backend)

    def busy() -> None:
        with gpu.job("busy", backend.needs) as job:
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
    backend = PlainLaneBackend()
    gpu = gpu_with("fair", backend)

    def fails() -> None:
        with gpu.job("greedy", backend.needs, 10) as job, pytest.raises(MemoryError), job.iteration():
            raise MemoryError("no more")

    def works() -> None:
        with gpu.job("modest", backend.needs, 10) as job:
            for _ in range(10):
                with job.iteration():
                    pass

    together(fails, works)
    endings = {row.job.name: (row.outcome, row.reason) for row in gpu.rows()}
    assert endings == {"greedy": (Outcome.FAILED, "MemoryError: no more"), "modest": (Outcome.FINISHED, "")}


@pytest.mark.parametrize("done", [0, 1, MEASURED])
def test_a_job_that_ends_while_it_is_measured_is_in_the_books(done: int) -> None:
    gpu = gpu_with("fair", PlainLaneBackend())
    with gpu.job("short", iterations=MEASURED) as job:
        for _ in range(done):
            with job.iteration():
                pass
    [row] = gpu.rows()
    assert (row.done, row.outcome) == (done, Outcome.FINISHED if done == MEASURED else Outcome.WITHDRAWN)


@pytest.mark.parametrize("needs", [None, Needs(5, 40, 1)])
def test_a_job_that_fails_between_its_turns_has_failed(needs: Needs | None) -> None:
    gpu = gpu_with("fair", PlainLaneBackend())

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
    gpu = gpu_with("fifo", PlainLaneBackend())
    with (
        gpu.job("huge", Needs(50, 60, 1)) as job,
        pytest.raises(JobEnded, match="job huge: it needs 110 bytes, and the GPU has 100"),
        job.iteration(),
    ):
        raise AssertionError("never its turn")


@pytest.mark.filterwarnings("ignore::astrarium.device.live.errors.MemoryWarning")
def test_what_was_decided_live_replays() -> None:
    backend = PlainLaneBackend()
    steps = list[Step]()
    backend.excess = {3: Excess(3, 50), 6: Excess(90, 40)}  # one that fits, and one that ends a job
    gpu = gpu_with("srtf", backend, steps)

    def work(iterations: int) -> Callable[[], None]:
        def run() -> None:
            with suppress(JobEnded), gpu.job("one", backend.needs, iterations) as job:
                for _ in range(iterations):
                    with job.iteration():
                        pass

        return run

    together(work(5), work(9), work(2))
    assert any(isinstance(event, NeedsChanged) for step in steps for event in step.events)
    fresh = Engine(DeviceState(backend.capacity, resident=True), iteration_policies.get("srtf")())
    assert replay(fresh, steps) is None


def one_job(backend: PlainLaneBackend, excess: Excess, turns: int = 3, **options: object) -> SharedGpu:
    """A job whose second turn shows this; the books are checked at every step."""
    gpu = gpu_with("fair", backend)
    gpu._driver._engine.validate = True
    backend.excess[1] = excess
    with gpu.job("keeper", backend.needs, **options) as job:  # type: ignore[arg-type]
        for _ in range(turns):
            with job.iteration():
                pass
    return gpu


def test_a_leak_is_charged_to_its_job_and_named_once() -> None:
    backend = PlainLaneBackend()
    backend.excess[2] = Excess(20, 40, 9, leaks=True)
    with pytest.warns(MemoryWarning) as warned:
        [row] = one_job(backend, Excess(10, 40, 7, ("train.py:12",), leaks=True)).rows()
    [warning] = warned
    assert str(warning.message).startswith(
        "job keeper: 10 bytes more than at first outlive its iterations, in 7 blocks, made at train.py:12; "
    )
    assert "loss.item()" in str(warning.message)
    assert (row.job.persistent, row.job.ephemeral, row.outcome) == (25, 40, Outcome.WITHDRAWN)


def test_a_lane_that_has_grown_is_booked_as_it_is() -> None:
    backend = PlainLaneBackend()
    with pytest.warns(MemoryWarning, match="an iteration took 60 bytes, and its lane had 40"):
        [row] = one_job(backend, Excess(0, 60)).rows()
    assert (row.job.persistent, row.job.ephemeral) == (5, 60)
    assert [turn.size for turn in backend.turns] == [40, 40, 60]


def test_what_is_held_without_a_leak_is_charged_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [row] = one_job(PlainLaneBackend(), Excess(2, 30)).rows()
    assert (row.job.persistent, row.job.ephemeral) == (7, 40)


@pytest.mark.filterwarnings("ignore:job keeper")
@pytest.mark.parametrize("excess", [Excess(60, 40, leaks=True), Excess(0, 96)])
def test_a_job_that_fits_no_more_ends_and_its_lane_is_given_back(excess: Excess) -> None:
    backend = PlainLaneBackend()
    with pytest.raises(
        JobEnded, match=r"job keeper: it needs more than was known of it .* the GPU has 55 left"
    ):
        one_job(backend, excess)
    assert backend.renewed == [0]


@pytest.mark.filterwarnings("ignore:job greedy")
def test_others_keep_what_they_have_when_a_job_wants_too_much() -> None:
    backend = PlainLaneBackend()
    gpu = gpu_with("fair", backend)
    gpu._driver._engine.validate = True
    backend.excess[1] = Excess(0, 91)

    def greedy() -> None:
        with gpu.job("greedy", backend.needs) as job:
            job.begin()
            with pytest.raises(JobEnded, match="the GPU has 50 left"):
                job.end()

    with gpu.job("modest", backend.needs, 2) as modest:
        with modest.iteration():
            pass
        together(greedy)
        with modest.iteration():
            pass
    assert {row.job.name: row.outcome for row in gpu.rows()} == {
        "modest": Outcome.FINISHED,
        "greedy": Outcome.FAILED,
    }


def test_an_excess_with_the_last_iteration_ends_nobody() -> None:
    [row] = one_job(PlainLaneBackend(), Excess(90, 40), turns=2, iterations=2).rows()
    assert row.outcome is Outcome.FINISHED


def test_iterations_of_a_job_do_not_nest() -> None:
    gpu = gpu_with("fair", PlainLaneBackend())
    with (
        gpu.job("nested", Needs(5, 40, 1)) as job,
        pytest.raises(OutOfTurn, match="job nested"),
        job.iteration(),
    ):
        job.begin()


def test_a_job_has_at_least_one_iteration() -> None:
    with (
        pytest.raises(InputError, match=r"job none: iterations: expected at least 1.*got 0"),
        gpu_with("fair", PlainLaneBackend()).job("none", iterations=0),
    ):
        raise AssertionError("never begun")


class Interrupted(PlainLaneBackend):
    """Ctrl-C while a job that has its turn begins it."""

    def begin(self, turn: object) -> None:
        raise KeyboardInterrupt


def test_a_turn_that_cannot_begin_leaves_the_lane_free() -> None:
    gpu = gpu_with("fair", Interrupted())
    with gpu.job("other", Needs(5, 40, 1)):
        with pytest.raises(KeyboardInterrupt), gpu.job("stopped", Needs(5, 40, 1)) as job:
            job.begin()
        assert not gpu._driver._state.running
    assert [row.outcome for row in gpu.rows()] == [Outcome.WITHDRAWN, Outcome.FAILED]


@pytest.mark.parametrize("case", ["waiting", "granted", "held", "told"])
def test_a_job_interrupted_while_it_waits_holds_up_nobody(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted at each of the places where a wait can be when Ctrl-C comes; the last is after it."""
    backend = PlainLaneBackend()
    turn_of_the_other = Event()
    gpu = gpu_with("fair", backend)
    outcomes = list[str]()

    def stopped() -> None:
        try:
            with gpu.job("stopped", backend.needs) as job:
                gate = _interrupted_gate(after=case == "told")
                monkeypatch.setattr("astrarium.device.live.turn_grants.SimpleQueue", gate)
                job.begin()
        except KeyboardInterrupt:
            outcomes.append("interrupted")
        monkeypatch.undo()

    with gpu.job("other", backend.needs) as other:
        if case == "waiting":
            other.begin()
        gpu._driver._grants.paused = case == "held"
        together(stopped)
        gpu._driver._grants.resume()
        assert (gpu._driver._grants.waiting, list(gpu._driver._grants.under_way)) == (
            [],
            [0] if case == "waiting" else [],
        )
        other.end()
        with other.iteration():
            turn_of_the_other.set()
    assert turn_of_the_other.is_set()
    assert [row.outcome for row in gpu.rows()] == [Outcome.WITHDRAWN, Outcome.FAILED]
    assert outcomes == ["interrupted"]


def _interrupted_gate(after: bool) -> type[SimpleQueue[object]]:
    class Gate(SimpleQueue[object]):
        def get(self, *args: object) -> object:
            if after:
                super().get()
            raise KeyboardInterrupt

    return Gate


def test_somebody_interrupted_before_being_measured_lets_others_run() -> None:
    backend = PlainLaneBackend()
    gpu = gpu_with("fair", backend)
    wait_for = gpu._driver._changed.wait_for

    def interrupted(predicate: Callable[[], bool]) -> bool:
        if gpu._driver._grants.paused:
            raise KeyboardInterrupt
        return wait_for(predicate)

    with gpu.job("other", backend.needs) as other:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(gpu._driver._changed, "wait_for", interrupted)
            with pytest.raises(KeyboardInterrupt), gpu.job("stopped") as job:
                job.begin()
        with other.iteration():
            pass
    assert [row.outcome for row in gpu.rows()] == [Outcome.WITHDRAWN, Outcome.FAILED]
