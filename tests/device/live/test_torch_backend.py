"""Pools, streams and turns, with the calls of torch.cuda in the place of a GPU."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND
from astrarium.device.live.backend import Excess, Needs, Turn
from astrarium.device.live.torch_backend import AHEAD, SMALL, TorchGpu, TorchLaneBackend
from astrarium.device.live.torch_lane_watch import SEGMENT

PATIENCE = 20.0
SIZE = 4 * SEGMENT


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda = cuda
        self.name = name

    def wait_stream(self, other: FakeStream) -> None:
        self.cuda.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: FakeEvent) -> None:
        self.cuda.log.append(f"{self.name} waits for {event.stream}")

    def synchronize(self) -> None:
        self.cuda.log.append(f"{self.name} is awaited")


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.stream = ""
        self.at = 0.0

    def record(self, stream: FakeStream) -> None:
        self.stream = stream.name
        self.at = self.cuda.gpu_ms

    def elapsed_time(self, later: FakeEvent) -> float:
        return later.at - self.at

    def synchronize(self) -> None:
        self.cuda.awaited.append(self)


class Pool:
    """PyTorch ends the process where a pool goes away while a thread is inside one."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.segments = list[int]()
        self.blocks = dict[int, int]()

    def __del__(self) -> None:
        self.cuda.ended.append(not self.cuda.inside)
        self.cuda.pinned += sum(self.segments) if self.blocks else 0

    def snapshot(self, include_traces: bool) -> list[dict[str, Any]]:
        assert not include_traces, "slow"
        self.cuda.looks += 1
        blocks = [{"address": at, "size": n, "state": "active_allocated"} for at, n in self.blocks.items()]
        return [{"total_size": size, "blocks": []} for size in self.segments] + [
            {"total_size": 0, "blocks": blocks}
        ]


class FakeCuda:
    def __init__(self, memory: int = 100 * SEGMENT) -> None:
        self.memory = self.free = memory
        self.log: list[str] = []
        self.awaited: list[FakeEvent] = []
        self.inside: list[int] = []  # threads in pools
        self.ended: list[bool] = []  # of pools: whether nobody was inside
        self.asked = self.looks = self.emptied = self.streams = 0
        self.allocated = self.peak = self.pinned = 0
        self.gpu_ms = 0.0  # on the GPU's clock
        self._pools: list[weakref.ref[Pool]] = []
        self._thread = threading.local()

    def mem_get_info(self, device: object) -> tuple[int, int]:
        return self.free, self.memory

    def memory_reserved(self, device: object) -> int:
        return 0

    def Stream(self, device: object, priority: int = 0) -> FakeStream:  # noqa: N802
        self.streams += 1
        return FakeStream(self, f"s{self.streams}")

    def Event(self, blocking: bool = False, enable_timing: bool = False) -> FakeEvent:  # noqa: N802
        return FakeEvent(self)

    def MemPool(self) -> Pool:  # noqa: N802
        pool = Pool(self)
        self._pools.append(weakref.ref(pool))
        return pool

    def current_stream(self, device: object) -> FakeStream:
        stream: FakeStream = getattr(self._thread, "stream", FakeStream(self, "default"))
        return stream

    def set_stream(self, stream: FakeStream) -> None:
        self._thread.stream = stream

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.current_stream(None)
        self.set_stream(stream)
        yield
        self.set_stream(before)

    @contextmanager
    def use_mem_pool(self, pool: Pool, device: object) -> Iterator[None]:
        self.inside.append(threading.get_ident())
        self._thread.pool = pool
        try:
            yield
        finally:
            self._thread.pool = None
            self.inside.remove(threading.get_ident())

    def caching_allocator_alloc(self, size: int, device: object) -> int:
        self.asked += 1
        if size > self.memory - self.reserved():
            raise torch.OutOfMemoryError(f"Tried to allocate {size} bytes")
        self._thread.pool.segments.append(-(-size // SEGMENT) * SEGMENT)
        return 1

    def reserved(self) -> int:
        """By pools; those that have ended keep what somebody still uses."""
        alive = sum(
            sum(pool.segments) for pool in [reference() for reference in self._pools] if pool is not None
        )
        return alive + self.pinned

    def caching_allocator_delete(self, block: int) -> None:
        assert block == 1

    def touch(self, device: object) -> None:
        assert threading.get_ident() not in self.inside, "its workspace would lie in the lane"
        self.log.append(f"workspace in {self.current_stream(None).name}")

    def empty_cache(self) -> None:
        assert not self.inside
        self.emptied += 1

    def memory_stats_as_nested_dict(self, device: object) -> dict[str, Any]:
        return {"segment": {"all": {"allocated": self.asked}}}

    def synchronize(self, device: object) -> None:
        self.log.append("all is awaited")

    def reset_peak_memory_stats(self, device: object) -> None:
        self.peak = self.allocated

    def memory_allocated(self, device: object) -> int:
        return self.allocated

    def max_memory_allocated(self, device: object) -> int:
        return self.peak


def turn(job: int = 0, lane: int = 0, size: int = SIZE, shared: bool = True) -> Turn:
    return Turn(job, 0, lane, size, shared)


def taken(backend: TorchLaneBackend, arguments: Turn, error: BaseException | None = None) -> Excess | None:
    backend.begin(arguments)
    return backend.end(arguments, error)


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def backend(cuda: FakeCuda) -> Iterator[TorchLaneBackend]:
    lanes = TorchLaneBackend(cuda=cuda, touch=cuda.touch)
    with lanes.job_thread():
        yield lanes


def pool_of(backend: TorchLaneBackend, lane: int = 0) -> Any:
    return backend.pools.lanes[lane].pool


def test_inputs_come_before_a_turn_and_results_before_what_follows(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    cuda.log.clear()
    backend.begin(turn())
    assert cuda.current_stream(None).name == "s2"
    assert cuda.log == ["workspace in s2", "s2 waits for s1"]
    backend.end(turn(), None)
    assert cuda.current_stream(None).name == "s1"
    assert cuda.log[-1] == "s1 waits for s2"


def test_a_workspace_is_made_once_for_a_thread_and_a_stream(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    for _ in range(3):
        taken(backend, turn())
    assert cuda.log.count("workspace in s2") == 1


def test_in_a_shared_lane_the_next_job_launches_while_the_last_one_runs(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    for number in range(5):
        taken(backend, turn(job=number))
        assert len(cuda.awaited) == number  # all but the last


def test_jobs_of_a_shared_lane_are_charged_for_their_own_time_on_the_gpu(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    times = []
    for job, took in ((0, 5.0), (1, 2.0), (0, 7.0), (1, 3.0), (0, 1.0)):
        backend.begin(turn(job))
        cuda.gpu_ms += took
        backend.end(turn(job), None)
        times.append(backend.took())
    # Of a job's last turn the GPU tells nothing yet; of its first, the host does.
    assert times == [None, None, 5 * MILLISECOND, 2 * MILLISECOND, 7 * MILLISECOND]


def test_a_job_by_itself_launches_ahead_but_not_for_ever(cuda: FakeCuda, backend: TorchLaneBackend) -> None:
    for _ in range(AHEAD + 4):
        taken(backend, turn(shared=False))
    assert len(cuda.awaited) == 4


def test_a_lane_is_one_segment_and_another_size_another_pool(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    taken(backend, turn())
    assert pool_of(backend).segments == [SIZE]
    for size in (SIZE + SEGMENT, SEGMENT):
        taken(backend, turn(size=size))
        assert pool_of(backend).segments == [size]
    assert cuda.ended == [True, True]
    assert cuda.emptied == 3


def test_a_pool_ends_only_while_nobody_is_inside_one(cuda: FakeCuda, backend: TorchLaneBackend) -> None:
    taken(backend, turn(lane=1))
    backend.begin(turn(lane=0))
    backend.close(1)
    assert cuda.ended == []
    backend.end(turn(lane=0), None)
    assert cuda.ended == [True]


def test_a_lane_is_made_when_everybody_has_left_and_nobody_enters_meanwhile(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    backend.begin(turn(lane=0))
    order: list[str] = []

    def newcomer(lane: int) -> None:
        with backend.job_thread():
            backend.begin(turn(lane=lane))
            order.append("in")
            backend.end(turn(lane=lane), None)

    threads = [threading.Thread(target=newcomer, args=(lane,), daemon=True) for lane in (1, 2, 3)]
    for thread in threads:
        thread.start()
    assert not order
    order.append("left")
    backend.end(turn(lane=0), None)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert order == ["left", "in", "in", "in"]
    assert cuda.inside == []


def test_nobody_slips_in_while_a_lane_is_to_be_made(cuda: FakeCuda, backend: TorchLaneBackend) -> None:
    """Else somebody is always inside, and it never is."""
    taken(backend, turn(lane=2))
    backend.begin(turn(lane=0))
    entered = threading.Event()

    def enter(lane: int) -> None:
        with backend.job_thread():
            backend.begin(turn(lane=lane))
            if lane == 2:
                entered.set()
            backend.end(turn(lane=lane), None)

    maker, other = (threading.Thread(target=enter, args=(lane,), daemon=True) for lane in (1, 2))
    maker.start()
    while not backend.pools.making:
        time.sleep(0)
    other.start()
    assert not entered.wait(0.05)
    backend.end(turn(lane=0), None)
    assert entered.wait(PATIENCE)
    maker.join(PATIENCE)
    other.join(PATIENCE)


def test_lanes_make_way_for_somebody_who_is_measured_where_memory_is_scarce(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    taken(backend, turn())
    for free, ended in ((60, []), (40, [True])):
        cuda.free = free * SEGMENT
        with backend.measured():
            assert cuda.ended == ended
    taken(backend, turn())
    assert pool_of(backend).segments == [SIZE]


def test_lanes_that_are_larger_than_the_books_say_make_way_for_one_that_must_be(cuda: FakeCuda) -> None:
    """B came into A's lane, which grew, and is gone; A has had no turn since. C fits by the books."""
    gpu = TorchGpu("pack", TorchLaneBackend(cuda=cuda, touch=cuda.touch))
    gpu._driver._engine.validate = True

    def other(name: str, segments: int) -> None:
        with gpu.job(name, Needs(SEGMENT, segments * SEGMENT, 1), 1) as job, job.iteration():
            pass

    with gpu.job("A", Needs(SEGMENT, 40 * SEGMENT, 1)) as first, ThreadPoolExecutor(1) as threads:
        for name, segments in (("", 0), ("B", 60), ("C", 50)):
            if name:
                threads.submit(other, name, segments).result(PATIENCE)
            else:
                with first.iteration():
                    pass
        with first.iteration():
            pass
    assert [row.outcome.name for row in gpu.rows()] == ["WITHDRAWN", "FINISHED", "FINISHED"]


def test_a_lane_in_which_something_lives_is_made_anew_beside_it_where_there_is_room(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    taken(backend, turn(size=30 * SEGMENT))
    pool_of(backend).blocks[1] = 512
    for size in (40, 10):
        taken(backend, turn(size=size * SEGMENT))
        assert pool_of(backend).segments == [size * SEGMENT]
    assert cuda.ended == [True, True]


def test_else_it_stays_and_grows_by_another_segment(cuda: FakeCuda, backend: TorchLaneBackend) -> None:
    """One gradient holds all of its segment: with a pool as large beside it the device would be too small."""
    taken(backend, turn(size=55 * SEGMENT))
    pool_of(backend).blocks[1] = 512
    for size, segments in ((65, [55, 10]), (50, [55, 10]), (50, [55, 10]), (70, [55, 10, 5])):
        taken(backend, turn(size=size * SEGMENT))
        assert pool_of(backend).segments == [count * SEGMENT for count in segments]
    assert cuda.ended == [True] * 3  # those that were tried beside it
    assert cuda.reserved() == 70 * SEGMENT
    looks = cuda.looks
    taken(backend, turn(job=3, size=70 * SEGMENT))
    assert cuda.looks == looks + 2  # at what the new job holds, before and after


def test_a_lane_that_could_not_shrink_is_nobodys_excess(cuda: FakeCuda, backend: TorchLaneBackend) -> None:
    taken(backend, turn(size=60 * SEGMENT))
    pool_of(backend).blocks[1] = 512
    for _ in range(8):
        assert taken(backend, turn(size=50 * SEGMENT)) is None
    backend.begin(turn(size=50 * SEGMENT))
    pool_of(backend).blocks[2] = 5 * SEGMENT - 512
    cuda.asked += 1
    excess = backend.end(turn(size=50 * SEGMENT), None)
    assert excess is not None
    assert (excess.held, excess.lane <= 50 * SEGMENT) == (5 * SEGMENT, True)


def test_a_job_that_has_its_lane_for_itself_has_one_stream(cuda: FakeCuda, backend: TorchLaneBackend) -> None:
    cuda.log.clear()
    backend.begin(turn(shared=False))
    assert cuda.current_stream(None).name == "s1"
    backend.end(turn(shared=False), None)
    assert cuda.log == ["workspace in s1"]
    assert backend.took() is None  # as long as the turn was


def test_when_another_comes_the_lane_is_made_anew_with_a_stream_of_its_own(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    for _ in range(AHEAD):
        taken(backend, turn(shared=False))
    assert cuda.awaited == []
    taken(backend, turn(job=1))
    assert (cuda.log.count("all is awaited"), backend.pools.lanes[0].stream.name) == (1, "s2")
    taken(backend, turn(shared=False))  # the other has gone: the lane stays as it is
    assert (cuda.emptied, backend.pools.lanes[0].stream.name) == (2, "s2")


def test_the_stream_of_a_job_is_not_given_to_a_lane(cuda: FakeCuda, backend: TorchLaneBackend) -> None:
    taken(backend, turn(shared=False))
    backend.close(0)
    taken(backend, turn(job=1, lane=1))
    assert backend.pools.lanes[1].stream.name == "s2"


def test_a_lane_that_cannot_be_made_anew_is_shared_on_its_jobs_stream(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    taken(backend, turn(size=60 * SEGMENT, shared=False))
    pool_of(backend).blocks[1] = 512  # somebody holds it, and there is no room for another
    for job in (1, 0, 1):
        taken(backend, turn(job=job, size=60 * SEGMENT))
        assert backend.pools.lanes[0].stream.name == "s1"
    assert cuda.emptied == 2  # tried once


def test_what_is_read_after_a_turn_is_not_given_to_others_meanwhile(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    class OnGpu(torch.Tensor):
        is_cuda = True
        readers: list[str]

        def record_stream(self, stream: Any) -> None:
            self.readers = [*getattr(self, "readers", []), stream.name]

    def tensor() -> OnGpu:
        fresh: OnGpu = torch.Tensor._make_subclass(OnGpu, torch.ones(1))
        return fresh

    before = tensor()
    logits = tensor()
    states = [tensor(), tensor()]
    backend.keep(before)  # not in a turn
    backend.begin(turn())
    backend.keep({"logits": logits, "states": (states, torch.ones(1)), "name": "bert"})
    backend.end(turn(), None)
    assert not hasattr(before, "readers")
    assert [tensor.readers for tensor in (logits, *states)] == [["s1"]] * 3


def test_without_a_gpu_the_ground_for_tests_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"expected a CUDA GPU; .*PlainLaneBackend\(\)"):
        TorchGpu("fair")


def test_a_lane_that_cannot_be_made_is_that_jobs_error(cuda: FakeCuda, backend: TorchLaneBackend) -> None:
    huge = turn(size=2 * cuda.memory)
    with pytest.raises(torch.OutOfMemoryError) as kept:
        backend.begin(huge)
    assert cuda.inside == []
    taken(backend, turn())  # the pool of the second try ends here, though the error is kept
    assert cuda.ended == [True, True]
    assert kept.value is not None


def test_growth_of_the_pool_is_found_and_kept_where_the_books_agree(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    taken(backend, turn())
    backend.begin(turn())
    pool_of(backend).segments.append(2 * SEGMENT)
    cuda.asked += 1
    excess = backend.end(turn(), None)
    assert excess is not None
    assert excess.lane == SIZE + 2 * SEGMENT
    taken(backend, turn(size=excess.lane))
    assert pool_of(backend).segments == [SIZE, 2 * SEGMENT]
    assert cuda.ended == []


def test_growth_that_the_books_refuse_is_given_back(cuda: FakeCuda, backend: TorchLaneBackend) -> None:
    backend.begin(turn())
    pool_of(backend).segments.append(2 * SEGMENT)
    cuda.asked += 1
    assert backend.end(turn(), None) is not None
    backend.renew(0)
    taken(backend, turn(job=1))
    assert (pool_of(backend).segments, cuda.ended) == ([SIZE], [True])


def test_leaks_are_looked_for_in_the_first_turns_and_rarely_later(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    excesses = []
    for step in range(100):
        backend.begin(turn())
        pool_of(backend).blocks[step] = 512
        excesses.append(backend.end(turn(), None))
    assert cuda.looks == 2 * 5
    leaks = [step for step, excess in enumerate(excesses, 1) if excess is not None and excess.leaks]
    assert leaks == [4, 16, 64]


def test_out_of_memory_leaves_nothing_in_the_frames_and_a_new_pool(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    class Tensor:
        pass

    def forward() -> None:
        activation = Tensor()
        alive.append(weakref.ref(activation))
        raise torch.OutOfMemoryError("Tried to allocate 1 GiB")

    alive: list[weakref.ref[Tensor]] = []
    backend.begin(turn())
    try:
        forward()
    except torch.OutOfMemoryError as error:
        kept = error
    assert alive[0]() is not None
    assert backend.end(turn(), kept) is None
    assert alive[0]() is None
    assert kept.__notes__ == [f"in a lane of {SIZE} bytes"]
    taken(backend, turn(job=1))
    assert cuda.ended == [True]


def test_what_is_measured_has_room_for_what_one_segment_loses(
    cuda: FakeCuda, backend: TorchLaneBackend
) -> None:
    cuda.allocated = 1000
    with backend.measured() as reading:
        cuda.allocated = 3000
        cuda.peak = 3000 + 40 * SEGMENT
    measured = reading()
    assert (measured.before, measured.after) == (1000, 3000)
    assert measured.peak - measured.after == 42 * SEGMENT + SMALL


def test_backward_runs_in_the_jobs_thread_and_only_there() -> None:
    assert torch._C._is_multithreading_enabled()
    with TorchLaneBackend(cuda=FakeCuda()).job_thread():
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled()


@pytest.mark.parametrize("policy", ["pack", "fair", "srtf"])
def test_jobs_that_come_and_go_end_no_pool_under_anybody(policy: str) -> None:
    """Lanes of all sizes are made, made anew and closed while other threads are inside theirs."""
    cuda = FakeCuda(40 * SEGMENT)
    gpu = TorchGpu(policy, TorchLaneBackend(cuda=cuda, touch=cuda.touch))
    gpu._driver._engine.validate = True

    def jobs(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(6):
            needs = Needs(SEGMENT, chance.randint(1, 12) * SEGMENT, 1000)
            with gpu.job(f"{seed}.{number}", needs) as job:
                for _ in range(chance.randint(1, 5)):
                    with job.iteration():
                        time.sleep(0)

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(jobs, seed) for seed in range(6)]:
            done.result(PATIENCE)
    gc.collect()
    assert cuda.ended
    assert all(cuda.ended)
    assert cuda.inside == []
    assert len(gpu.rows()) == 36
    backend = gpu.backend
    assert isinstance(backend, TorchLaneBackend)
    assert (backend.pools.inside, backend.pools.lanes, backend.pools.given_up) == (0, {}, [])
    assert cuda.streams <= 12  # one for each thread, and for each lane that there was at a time
