"""Live trouble that must be told and not waited for: threads in the wrong place, policies and records that
fail; and memory that is somebody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event

import pytest

from astrarium.core.errors import InputError
from astrarium.core.policy import TimerFired
from astrarium.core.quantities import SECOND, Time
from astrarium.core.trace import Step
from astrarium.device.contract import Action, IterationFinished, NeedsChanged
from astrarium.device.contract import Event as DeviceEvent
from astrarium.device.ledger import Outcome
from astrarium.device.live.backend import Excess, Needs, Reading, Turn
from astrarium.device.live.charges import MEASURED, Charges
from astrarium.device.live.errors import JobEnded, OutOfTurn
from astrarium.device.live.live_job import LiveJob
from astrarium.device.live.shared_gpu import SharedGpu
from astrarium.device.policies import iteration_policies
from astrarium.device.policies.turns import Fair, Srtf
from astrarium.device.state import DeviceState
from astrarium.testing.plain_backend import PlainLaneBackend

PATIENCE = 20.0
NEEDS = Needs(5, 40, 1000)


def gpu_with(policy: str = "fair", backend: PlainLaneBackend | None = None) -> SharedGpu:
    gpu = SharedGpu(iteration_policies.get(policy)(), backend or PlainLaneBackend())
    gpu._driver._engine.validate = True
    return gpu


def elsewhere(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result(PATIENCE)


def turns(job: LiveJob, count: int) -> None:
    for _ in range(count):
        with job.iteration():
            pass


@pytest.mark.parametrize("needs", [NEEDS, None])
def test_a_thread_is_in_one_iteration_at_a_time(needs: Needs | None) -> None:
    """As in a loop with two models, each attached by itself."""
    gpu = gpu_with()
    with gpu.job("generator", needs) as one, gpu.job("discriminator", needs) as other:
        with one.iteration(), pytest.raises(OutOfTurn, match=r"job discriminator: .* of job generator"):
            other.begin()
        turns(other, 2)
        turns(one, 2)


def test_a_job_belongs_to_the_thread_that_made_it() -> None:
    gpu = gpu_with()

    def stranger() -> None:
        for call in (job.begin, job.end):
            with pytest.raises(OutOfTurn, match="job mine: it is used by the thread"):
                call()

    with gpu.job("mine", NEEDS) as job:
        with job.iteration():
            elsewhere(stranger)
        turns(job, 1)
    assert gpu.rows()[0].done == 2


class Faulty(Fair):
    """Raises at the end of the iteration of that number."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def decide(self, now: Time, events: Sequence[DeviceEvent], state: DeviceState) -> Iterator[Action]:
        yield from super().decide(now, events, state)
        self._left -= sum(isinstance(event, IterationFinished) for event in events)
        if not self._left:
            raise ZeroDivisionError("a bad policy")


def failing_record(at: int) -> Callable[[Step], None]:
    left = [at]

    def record(step: Step) -> None:
        left[0] -= any(isinstance(event, IterationFinished) for event in step.events)
        if not left[0]:
            raise OSError("disk full")

    return record


@pytest.mark.parametrize("what", ["policy", "record"])
@pytest.mark.parametrize("at", [1, 2, 7])
def test_an_error_of_the_policy_or_the_record_is_told_to_everybody(what: str, at: int) -> None:
    policy = Faulty(at) if what == "policy" else Fair()
    record = failing_record(at) if what == "record" else None
    gpu = SharedGpu(policy, PlainLaneBackend(), record=record)
    errors = list[str]()

    def work() -> None:
        try:
            with gpu.job("one", NEEDS) as job:
                turns(job, 50)
        except (OSError, ZeroDivisionError, JobEnded) as error:
            errors.append(f"{type(error).__name__} {error}")

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(work) for _ in range(3)]:
            done.result(PATIENCE)
    reason = "OSError: disk full" if what == "record" else "ZeroDivisionError: a bad policy"
    ended = [text for text in errors if text == f"JobEnded the GPU is shared no more: {reason}"]
    assert (len(errors), len(ended)) == (3, 2)
    assert all(row.outcome is Outcome.FAILED for row in gpu.rows())


def test_an_error_of_the_policy_at_a_timer_is_told_too() -> None:
    class Late(Srtf):
        def decide(self, now: Time, events: Sequence[DeviceEvent], state: DeviceState) -> Iterator[Action]:
            if any(isinstance(event, TimerFired) for event in events):
                raise ZeroDivisionError("a bad policy")
            yield from super().decide(now, events, state)

    now = [0]
    there = Event()
    pause = Event()
    gpu = SharedGpu(Late(), PlainLaneBackend(), lambda: now[0])

    def other() -> None:
        with gpu.job("other", NEEDS, iterations=50) as job:
            there.set()
            turns(job, 1)

    with ThreadPoolExecutor(1) as threads, gpu.job("first", NEEDS, iterations=9) as first:
        with first.iteration():
            waits = threads.submit(other)
            assert there.wait(PATIENCE)
            while not gpu._driver._grants.waiting:
                pause.wait(0.001)
        now[0] = SECOND  # the first is waited for no more
        with pytest.raises(JobEnded, match="a bad policy"):
            waits.result(PATIENCE)


def test_who_comes_when_all_is_over_is_told_at_once() -> None:
    gpu = SharedGpu(Faulty(1), PlainLaneBackend())
    with pytest.raises(ZeroDivisionError), gpu.job("first", NEEDS) as first:
        turns(first, 1)
    for needs in (NEEDS, None):
        with pytest.raises(JobEnded, match="a bad policy"), gpu.job("late", needs) as late:
            turns(late, 1)


def test_a_job_of_fewer_iterations_than_are_measured_is_over_after_them() -> None:
    gpu = gpu_with()
    done = list[int]()

    def run() -> None:
        with gpu.job("two", iterations=2) as job:
            for number in range(MEASURED):
                with job.iteration():
                    done.append(number)

    with pytest.raises(JobEnded, match="job two: finished"):
        run()
    assert done == [0, 1]


def test_a_job_that_failed_while_it_was_measured_keeps_its_error_though_it_would_not_fit() -> None:
    gpu = gpu_with(backend=PlainLaneBackend(100, Needs(80, 60, 1)))

    def run() -> None:
        with gpu.job("huge") as job:
            turns(job, 1)
            raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        run()
    [row] = gpu.rows()
    assert (row.outcome, row.reason) == (Outcome.FAILED, "OSError: no data")


class Device(PlainLaneBackend):
    """What is allocated is told by the test."""

    now = 0

    def allocated(self) -> int:
        return self.now

    @contextmanager
    def measured(self) -> Iterator[Callable[[], Reading]]:
        before = self.now
        yield lambda: Reading(before, self.now, self.now + 30, 1)


def test_what_is_read_last_is_what_stays() -> None:
    """Somebody else had built something, and let it go again."""
    backend = Device(100)
    gpu = gpu_with(backend=backend)
    after = iter([30, 60, 40])
    with gpu.job("measured", owned=30) as job:
        for _ in range(MEASURED):
            with job.iteration():
                backend.now = next(after)
        assert gpu.rows()[0].job.persistent == 40


@pytest.mark.parametrize(("built", "charged"), [(True, 45), (False, 75)])
def test_a_model_built_while_another_job_was_measured_is_charged_once(built: bool, charged: int) -> None:
    """The first has 30, and 45 more when it is measured: gradients of 15 and another's model of 30, or, where
    that comes later, all its own."""
    backend = Device(200)
    gpu = gpu_with(backend=backend)
    backend.now = 30
    with gpu.job("first", owned=30) as first:
        backend.now += 45
        turns(first, MEASURED)
        backend.now += 0 if built else 30
        with gpu.job("second", owned=30) as second:
            turns(second, MEASURED)
            assert [row.job.persistent for row in gpu.rows()] == [charged, 30]
            backend.excess[len(backend.turns)] = Excess(4, 30)
            turns(first, 1)
            assert gpu.rows()[0].job.persistent == charged + 4


def test_those_that_said_what_they_need_do_not_make_others_cheaper() -> None:
    """More is booked for them than they have."""
    backend = Device(400)
    gpu = gpu_with(backend=backend)
    with gpu.job("told", Needs(100, 10, 1)), gpu.job("first", owned=30) as first:
        backend.now = 175
        turns(first, MEASURED)
        backend.now = 105  # the first has 75 in truth, and the other one nothing
        with gpu.job("second", owned=30):
            assert [row.job.persistent for row in gpu.rows()] == [100, 75]


def test_a_leak_in_a_lane_that_is_anothers_is_charged_alone() -> None:
    charges = Charges(0)
    turn = Turn(0, 0, 0, 40, shared=True)
    charges.known(Needs(5, 10, 1))
    assert charges.exceeded(turn, Excess(held=2, lane=40, leaks=True)) == [NeedsChanged(0, 7, 10)]
    assert charges.exceeded(turn, Excess(held=2, lane=42)) == [NeedsChanged(0, 7, 42)]


def test_those_who_wait_are_on_the_gpu_already() -> None:
    """Jobs that take 25 of 100: beside a lane of 40 there is room for one more, whoever waits."""
    for policy, admitted in (("fifo", 1), ("fair", 2), ("pack", 2)):
        gpu = gpu_with(policy)
        with ExitStack() as jobs:
            for number in range(4):
                jobs.enter_context(gpu.job(f"job{number}", Needs(25, 40, 1)))
            assert len(gpu._driver._state.admitted) == admitted
            resident = 25 * len(gpu._driver._state.waiting)
            small = jobs.enter_context(gpu.job("small", Needs(0, 5, 1)))
            assert resident >= 50
            assert small.id in gpu._driver._state.waiting
        assert len(gpu.rows()) == 5


def test_where_nobody_is_left_the_next_one_begins_whatever_waits() -> None:
    gpu = gpu_with("fair")
    with ExitStack() as others:
        with gpu.job("first", Needs(30, 40, 1)):
            for number in range(3):
                others.enter_context(gpu.job(f"job{number}", Needs(35, 60, 1)))
            assert len(gpu._driver._state.admitted) == 1
        assert len(gpu._driver._state.admitted) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"priority": "high"}, "priority: expected a whole number"),
        ({"priority": 1.5}, "priority: expected a whole number"),
        ({"demand": 0.0}, "demand: expected a share of the GPU"),
        ({"demand": float("nan")}, "demand: expected a share of the GPU"),
        ({"demand": "all"}, "demand: expected a share of the GPU"),
        ({"iterations": 2.5}, "iterations: expected at least 1"),
        ({"needs": Needs(-500, 40, 1)}, "needs.persistent: expected a whole number of bytes, at least 0"),
        ({"needs": Needs(5, 1e9, 1)}, "needs.ephemeral: expected a whole number of bytes"),  # type: ignore[arg-type]
        ({"needs": Needs(5, 40, 0)}, "needs.iteration: expected a whole number of nanoseconds, at least 1"),
        ({"needs": {"persistent": 3}}, r"needs: expected Needs\(persistent, ephemeral, iteration\), or None"),
    ],
)
def test_what_cannot_be_is_said_before_anybody_hears_of_the_job(
    options: dict[str, object], expected: str
) -> None:
    gpu = gpu_with("priority")
    with pytest.raises(InputError, match=f"job odd: {expected}"), gpu.job("odd", **options):  # type: ignore[arg-type]
        raise AssertionError("never begun")
    assert gpu.rows() == []
