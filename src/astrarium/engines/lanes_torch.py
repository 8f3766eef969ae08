"""Lanes on PyTorch: a memory pool, a stream and a turn.

    gpu = TorchGpu("fair")
    with gpu.attached("resnet50", model, optimizer):     # in the job's thread, around a loop as it is
        for images, labels in data:
            ...

Blocks of a pool are reused by stream order, so all iterations of a lane run on its one stream and need no
synchronization when jobs change. What a job makes outside its iterations, and in the first ones, which are
measured, stays in PyTorch's own memory. Backward runs in the job's thread, because pools and streams belong
to threads. Pools begin and end while no thread is inside any pool: PyTorch insists.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import torch

from astrarium.core.trace import Step
from astrarium.device.ground import Excess, Ground, Reading, Turn
from astrarium.device.live import LiveJob, SharedGpu
from astrarium.device.registry import IterationPolicy, iteration_policies
from astrarium.engines.lanes_torch_hooks import followed, owned_bytes
from astrarium.engines.lanes_watch import Watch, rounded, viewed

SLACK = 0.03  # of the free memory: contexts, workspaces, what fragments
FRAGMENTS, SMALL = 0.05, 20 << 20  # of an iteration's memory: what one segment loses, and small blocks take
SCARCE = 0.5  # of the device that is free: too little to measure somebody beside lanes
JOBS, LANES = -1, 0  # priorities of streams; PyTorch has 32 of each
AHEAD = 3  # iterations that may be under way when a turn ends, where nobody else shares the lane


@dataclass
class _Lane:
    stream: Any
    pool: Any
    size: int
    watch: Watch = field(default_factory=Watch)
    launched: list[Any] = field(default_factory=list)  # an event for each iteration that may still run
    stale: bool = False


class _Seat(threading.local):
    """What a job's thread has with it."""

    inputs: Any = None  # an event: what was launched before the turn
    outside: Any = None  # the stream it comes back to
    lane: _Lane | None = None
    pool: Any = None  # the block of `use_mem_pool` that it is in

    def __init__(self) -> None:
        self.warm: set[Any] = set()  # streams in which it has launched


def touched(device: torch.device) -> None:
    """cuBLAS has a workspace, and cuBLASLt may have another."""
    ones = torch.ones(16, 16, device=device, dtype=torch.bfloat16)
    torch.mm(ones, ones)
    torch.nn.functional.linear(ones, ones, ones[0])


class TorchGround:
    """One CUDA device. *cuda* is torch.cuda, or what a test has in its place; *touch* uses the libraries."""

    def __init__(
        self,
        device: int = 0,
        ahead: int = AHEAD,
        cuda: Any = torch.cuda,
        touch: Callable[[torch.device], object] = touched,
    ) -> None:
        self._cuda, self._ahead, self._touch = cuda, ahead, touch
        self._device = torch.device("cuda", device)
        free, _ = cuda.mem_get_info(self._device)
        self.capacity = int((free + cuda.memory_reserved(self._device)) * (1 - SLACK))
        self._lanes: dict[int, _Lane] = {}
        self._given_up: list[tuple[Any, Any]] = []  # streams and pools
        self._watches: dict[int, Watch] = {}  # of lanes that are to be made anew
        self._spare: dict[int, list[Any]] = {JOBS: [], LANES: []}  # streams, by priority
        self._inside = 0  # threads in pools
        self._making = False  # a lane: nobody may enter a pool meanwhile
        self._quiet = threading.Condition()
        self._seats = _Seat()

    @contextmanager
    def seat(self) -> Iterator[None]:
        cuda, stream = self._cuda, self._stream(JOBS)
        stream.wait_stream(cuda.current_stream(self._device))
        self._seats.inputs = cuda.Event()
        try:
            with cuda.stream(stream), torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            stream.synchronize()
            self._spare[JOBS].append(stream)

    def begin(self, turn: Turn) -> None:
        seat = self._seats
        lane = self._enter(turn)
        try:
            seat.outside = self._cuda.current_stream(self._device)
            self._warm_up(lane)
            seat.inputs.record(seat.outside)
            lane.stream.wait_event(seat.inputs)
            pool = self._cuda.use_mem_pool(lane.pool, self._device)
            pool.__enter__()
        except BaseException:
            self._left()
            raise
        self._cuda.set_stream(lane.stream)
        seat.lane, seat.pool = lane, pool

    def end(self, turn: Turn, error: BaseException | None) -> Excess | None:
        seat, lane = self._seats, self._seats.lane
        assert lane is not None, "a turn ends in the thread that began it"
        self._cuda.set_stream(seat.outside)
        try:
            seat.pool.__exit__(None, None, None)
        finally:
            seat.lane = seat.pool = None
            self._left()
        self._launched(lane, turn.shared)
        if error is not None:
            self._failed(lane, error)
            return None
        return self._look(lane, turn)

    @contextmanager
    def measured(self) -> Iterator[Callable[[], Reading]]:
        cuda, device = self._cuda, self._device
        self._make_room()
        cuda.synchronize(device)
        cuda.reset_peak_memory_stats(device)
        before, began, found = cuda.memory_allocated(device), monotonic_ns(), list[Reading]()
        yield lambda: found[0]
        cuda.synchronize(device)
        took, after = monotonic_ns() - began, cuda.memory_allocated(device)
        ephemeral = int((cuda.max_memory_allocated(device) - after) * (1 + FRAGMENTS))
        found.append(Reading(before, after, after + rounded(ephemeral) + SMALL, took))

    def renew(self, lane: int) -> None:
        with self._quiet:
            if lane in self._lanes:
                self._lanes[lane].stale = True

    def close(self, lane: int) -> None:
        """Its memory goes back to the device as soon as that can be."""
        with self._quiet:
            self._give_up(lane)
            self._watches.pop(lane, None)
            if not self._inside:
                self._clear()

    # lanes come and go while nobody is inside a pool

    def _enter(self, turn: Turn) -> _Lane:
        with self._quiet:
            self._quiet.wait_for(lambda: not self._making)
            lane = self._lanes.get(turn.lane)
            if lane is None or lane.stale or lane.size != turn.size:
                lane = self._make(turn)
            self._inside += 1
            return lane

    def _make(self, turn: Turn) -> _Lane:
        """What PyTorch keeps for later is given back first: the books know nothing of it."""
        self._give_up(turn.lane)
        self._making = True
        try:
            self._quiet.wait_for(lambda: not self._inside)
            self._clear()
            self._cuda.empty_cache()
            self._lanes[turn.lane] = _Lane(self._stream(LANES), self._cuda.MemPool(), turn.size)
            self._lanes[turn.lane].watch = self._watches.pop(turn.lane, Watch())
            self._reserve(self._lanes[turn.lane])
        except BaseException:
            self._give_up(turn.lane)
            raise
        finally:
            self._making = False
            self._quiet.notify_all()
        return self._lanes[turn.lane]

    def _reserve(self, lane: _Lane) -> None:
        """All of a lane is split from one segment, since a pool cannot join segments: another size is another
        pool."""
        with self._cuda.stream(lane.stream), self._cuda.use_mem_pool(lane.pool, self._device):
            block = self._cuda.caching_allocator_alloc(max(1, lane.size), self._device)
            self._cuda.caching_allocator_delete(block)

    def _stream(self, priority: int) -> Any:
        """Jobs and lanes have their own, so that a job that waits for its results holds up no lane; and they
        are used again, since libraries keep a workspace for each that a thread has ever used."""
        try:
            return self._spare[priority].pop()
        except IndexError:
            return self._cuda.Stream(self._device, priority=priority)

    def _left(self) -> None:
        with self._quiet:
            self._inside -= 1
            if not self._inside:
                self._clear()
                self._quiet.notify_all()

    def _give_up(self, lane: int) -> None:
        if lane in self._lanes:
            old = self._lanes.pop(lane)
            self._given_up.append((old.stream, old.pool))
            old.pool = None
            self._watches[lane] = old.watch.renewed()

    def _make_room(self) -> None:
        """Who is measured runs outside all lanes, and nobody else runs: lanes that have most of the device
        make way, and are made anew at their next turn."""
        free, total = self._cuda.mem_get_info(self._device)
        with self._quiet:
            if free < SCARCE * total and not self._inside:
                for lane in list(self._lanes):
                    self._give_up(lane)
                self._clear()
                self._cuda.empty_cache()

    def _clear(self) -> None:
        """No name may hold a pool here: it must end inside, while nobody can enter one."""
        while self._given_up:
            self._given_up[-1][0].synchronize()
            self._spare[LANES].append(self._given_up.pop()[0])

    # turns

    def _warm_up(self, lane: _Lane) -> None:
        """Libraries have a workspace for each thread and stream, made at first use: not in the lane."""
        if lane.stream not in self._seats.warm:
            self._seats.warm.add(lane.stream)
            with self._cuda.stream(lane.stream):
                self._touch(self._device)

    def _launched(self, lane: _Lane, shared: bool) -> None:
        """Results are there for what is launched outside. In a shared lane the turn lasts as long as its
        work, so that everybody is charged for their own; a job by itself may launch ahead."""
        done = self._cuda.Event(blocking=not shared)
        done.record(lane.stream)
        self._seats.outside.wait_event(done)
        lane.launched.append(done)
        while len(lane.launched) > (0 if shared else self._ahead):
            lane.launched.pop(0).synchronize()

    def _failed(self, lane: _Lane, error: BaseException) -> None:
        """Frames of the traceback hold tensors: whoever keeps the error must not keep the memory."""
        if isinstance(error, torch.OutOfMemoryError):
            traceback.clear_frames(error.__traceback__)
            error.add_note(f"in a lane of {lane.size} bytes")
            lane.stale = True

    def _look(self, lane: _Lane, turn: Turn) -> Excess | None:
        if not lane.watch.due(turn.job, self._asked, turn.shared):
            return None
        excess = lane.watch.seen(turn.job, turn.size, viewed(_snapshot(lane.pool)))
        if excess is not None and excess.lane > lane.size:
            lane.size = excess.lane  # it has as much now: where the books agree, it can stay as it is
        return excess

    def _asked(self) -> int:
        """How often PyTorch asked the device for memory."""
        return int(self._cuda.memory_stats_as_nested_dict(self._device)["segment"]["all"]["allocated"])


def _snapshot(pool: Any) -> Any:
    try:
        return pool.snapshot(include_traces=False)
    except TypeError:  # not every version can leave them out
        return pool.snapshot()


class TorchGpu(SharedGpu):
    """A CUDA device that training and inference loops share, by the iteration policy of that name."""

    def __init__(
        self,
        policy: str | IterationPolicy,
        ground: Ground | None = None,
        record: Callable[[Step], None] | None = None,
    ) -> None:
        chosen = iteration_policies.get(policy)() if isinstance(policy, str) else policy
        super().__init__(chosen, ground or TorchGround(), record=record)

    @contextmanager
    def attached(
        self, name: str, model: torch.nn.Module, *optimizers: torch.optim.Optimizer, **options: Any
    ) -> Iterator[LiveJob]:
        """A loop as it is, in this thread, becomes a job: each call of the model, up to the optimizers' step,
        is an iteration. *options* are those of `job`."""
        owned = owned_bytes(model, optimizers)
        with self.job(name, owned=owned, **options) as job, followed(job, model, optimizers):
            yield job
