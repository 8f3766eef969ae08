"""The lanes of PyTorch are made of a memory pool, a stream and turns.

    gpu = TorchGpu("fair")
    with gpu.attached("resnet50", model, optimizer):     # in the job's thread, around a loop as it is
        for images, labels in data:
            ...

Blocks of a pool are reused by stream order, so all iterations of a lane run on its one stream and need no
synchronization when jobs change. A job that has its lane for itself has one stream for all that it does. What
a job makes outside its iterations, and in the first ones, which are measured, stays in PyTorch's own memory.
Backward runs in the job's thread, because pools and streams belong to threads.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any

import torch

from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND, Time
from astrarium.core.trace import Step
from astrarium.device.live.backend import Excess, LaneBackend, Reading, Turn
from astrarium.device.live.live_job import LiveJob
from astrarium.device.live.shared_gpu import SharedGpu
from astrarium.device.live.torch_hooks import followed, owned_bytes
from astrarium.device.live.torch_lane_watch import rounded
from astrarium.device.live.torch_pools import JOBS, LaunchedIteration, Pools, TorchLane
from astrarium.device.policies import IterationPolicy, iteration_policies

SLACK = 0.03  # of the free memory: contexts, workspaces, what fragments
# of an iteration's memory: what one segment loses, and small blocks take
FRAGMENTS = 0.05
SMALL = 20 << 20
NO_GPU = "a CUDA GPU; without one, turns can be tried on astrarium.testing.plain_backend.PlainLaneBackend()"
# So many iterations may be under way when a turn ends: with one, the GPU works while the next job launches.
AHEAD = 3
SHARED_AHEAD = 1


class _ThreadState(threading.local):
    """A job's thread has a state of its own."""

    home: Any = None  # the job's stream
    inputs: Any = None  # an event: what was launched before the turn
    outside: Any = None  # the stream that the thread comes back to
    lane: TorchLane | None = None
    pool: Any = None  # the block of `use_mem_pool` that the thread is in
    began: Any = None  # an event in the lane, before the turn's work
    took: Time | None = None  # GPU time that the job has not been charged for

    def __init__(self) -> None:
        self.warm: set[Any] = set()  # streams in which the thread has launched


def touched(device: torch.device) -> None:
    """Use the libraries once: cuBLAS has a workspace, and cuBLASLt may have another."""
    ones = torch.ones(16, 16, device=device, dtype=torch.bfloat16)
    torch.mm(ones, ones)
    torch.nn.functional.linear(ones, ones, ones[0])


class TorchLaneBackend:
    """The backend makes lanes of a CUDA device. *cuda* is torch.cuda, or a test's; *touch* uses libraries."""

    def __init__(
        self,
        device: int = 0,
        ahead: int = AHEAD,
        cuda: Any = torch.cuda,
        touch: Callable[[torch.device], object] = touched,
    ) -> None:
        if cuda is torch.cuda and not torch.cuda.is_available():
            raise InputError("device", device, NO_GPU)
        self._cuda = cuda
        self._ahead = ahead
        self._touch = touch
        # the index is looked up sooner
        self._device = torch.device("cuda", device)
        self._index = device
        free, _ = cuda.mem_get_info(self._device)
        self.capacity = int((free + cuda.memory_reserved(self._device)) * (1 - SLACK))
        self.pools = Pools(self._device, cuda)
        self._thread_state = _ThreadState()

    @contextmanager
    def job_thread(self) -> Iterator[None]:
        cuda = self._cuda
        stream = self.pools.stream(JOBS)
        stream.wait_stream(cuda.current_stream(self._device))
        self._thread_state.home, self._thread_state.inputs = stream, cuda.Event()
        try:
            with cuda.stream(stream), torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            stream.synchronize()
            self.pools.spare(stream, JOBS)

    def begin(self, turn: Turn) -> None:
        thread = self._thread_state
        lane = self.pools.enter(turn, thread.home)
        try:
            self._await(lane, self._allowed(turn))
            if lane.watch.will_look(turn.job):
                lane.watch.began(turn.job, lane.view())
            thread.outside = self._cuda.current_stream(self._index)
            self._warm_up(lane)
            self._go_in(lane)
            thread.began = self._marked(lane) if turn.shared else None
            pool = self._cuda.use_mem_pool(lane.pool, self._index)
            pool.__enter__()
        except BaseException:
            self.pools.left()
            raise
        thread.lane = lane
        thread.pool = pool

    def end(self, turn: Turn, error: BaseException | None) -> Excess | None:
        thread = self._thread_state
        lane = self._thread_state.lane
        assert lane is not None, "a turn ends in the thread that began it"
        try:
            thread.pool.__exit__(None, None, None)
            done = self._marked(lane)
            self._come_out(lane, done)
            if error is not None:
                self._failed(lane, error)
            excess = self._look(lane, turn) if error is None else None  # while the GPU is still at work
            lane.launched.append(LaunchedIteration(turn.job, thread.began, done))
            self._await(lane, self._allowed(turn))
            thread.took = lane.spent.pop(turn.job, None)
            return excess
        finally:
            thread.lane = thread.pool = None
            self.pools.left()  # only now: the lane may be given up at once

    def took(self) -> Time | None:
        return self._thread_state.took

    @contextmanager
    def measured(self) -> Iterator[Callable[[], Reading]]:
        cuda = self._cuda
        device = self._device
        self.pools.free_memory()
        cuda.synchronize(device)
        cuda.reset_peak_memory_stats(device)
        before = cuda.memory_allocated(device)
        began = monotonic_ns()
        readings = list[Reading]()
        yield lambda: readings[0]
        cuda.synchronize(device)
        took = monotonic_ns() - began
        after = cuda.memory_allocated(device)
        ephemeral = int((cuda.max_memory_allocated(device) - after) * (1 + FRAGMENTS))
        readings.append(Reading(before, after, after + rounded(ephemeral) + SMALL, took))

    def allocated(self) -> int:
        return int(self._cuda.memory_allocated(self._device))

    def keep(self, value: object) -> None:
        """Mark tensors as used by the thread's own stream: otherwise the memory of a tensor that is let go
        while that stream still reads it would be another job's at once."""
        thread = self._thread_state
        if thread.lane is not None and thread.lane.stream != thread.outside:
            for tensor in _tensors(value):
                tensor.record_stream(thread.outside)

    def renew(self, lane: int) -> None:
        self.pools.renew(lane)

    def close(self, lane: int) -> None:
        self.pools.close(lane)

    def _go_in(self, lane: TorchLane) -> None:
        """Enter the lane's stream, after what was launched outside."""
        outside = self._thread_state.outside
        if lane.stream != outside:
            self._thread_state.inputs.record(outside)
            lane.stream.wait_event(self._thread_state.inputs)
            self._cuda.set_stream(lane.stream)

    def _come_out(self, lane: TorchLane, done: Any) -> None:
        """Leave the lane's stream: what is launched outside waits for its results."""
        outside = self._thread_state.outside
        if lane.stream != outside:
            self._cuda.set_stream(outside)
            outside.wait_event(done)

    def _warm_up(self, lane: TorchLane) -> None:
        """Make the libraries' workspaces, one for each thread and stream, outside the lane."""
        if lane.stream not in self._thread_state.warm:
            self._thread_state.warm.add(lane.stream)
            with self._cuda.stream(lane.stream):
                self._touch(self._device)

    def _allowed(self, turn: Turn) -> int:
        return SHARED_AHEAD if turn.shared else self._ahead

    def _marked(self, lane: TorchLane) -> Any:
        event = self._cuda.Event(enable_timing=True, blocking=True)
        event.record(lane.stream)
        return event

    def _await(self, lane: TorchLane, ahead: int) -> None:
        """Wait until at most *ahead* iterations are under way; also before a turn, as a lane may have been
        one job's own until now."""
        while len(lane.launched) > ahead:
            job, began, done = lane.launched.pop(0)
            done.synchronize()
            if began is not None:
                lane.spent[job] = lane.spent.get(job, 0) + round(began.elapsed_time(done) * MILLISECOND)

    def _failed(self, lane: TorchLane, error: BaseException) -> None:
        """Clear the traceback's frames, which hold tensors: keeping the error must not keep the memory."""
        if isinstance(error, torch.OutOfMemoryError):
            traceback.clear_frames(error.__traceback__)
            error.add_note(f"in a lane of {lane.size} bytes")
            lane.stale = True

    def _look(self, lane: TorchLane, turn: Turn) -> Excess | None:
        if not lane.watch.due(turn.job, self._asked, turn.shared):
            return None
        excess = lane.watch.seen(turn.job, lane.size, lane.view())
        if excess is None or excess.lane <= lane.size:  # it may be larger than booked: not this job's doing
            return excess and excess._replace(lane=min(excess.lane, turn.size))
        lane.size = excess.lane  # it has as much now: where the layout agrees, it can stay as it is
        return excess

    def _asked(self) -> int:
        """Return how often PyTorch asked the device for memory."""
        return int(self._cuda.memory_stats_as_nested_dict(self._device)["segment"]["all"]["allocated"])


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors on a GPU in what a model may return."""
    if isinstance(value, torch.Tensor):
        if value.is_cuda:
            yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)


class TorchGpu(SharedGpu):
    """A CUDA device is shared by training and inference loops, by the iteration policy of that name."""

    def __init__(
        self,
        policy: str | IterationPolicy,
        backend: LaneBackend | None = None,
        record: Callable[[Step], None] | None = None,
    ) -> None:
        chosen = iteration_policies.get(policy)() if isinstance(policy, str) else policy
        super().__init__(chosen, backend or TorchLaneBackend(), record=record)

    @contextmanager
    def attached(
        self, name: str, model: torch.nn.Module, *optimizers: torch.optim.Optimizer, **options: Any
    ) -> Iterator[LiveJob]:
        """Make a job of an unmodified loop in this thread: each call of the model, up to the optimizers'
        step, is an iteration. *options* are those of `job`."""
        owned = owned_bytes(model, optimizers)
        with self.job(name, owned=owned, **options) as job, followed(job, model, optimizers):
            yield job
