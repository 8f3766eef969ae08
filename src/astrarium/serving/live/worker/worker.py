"""A worker is one process for one GPU, which runs one batch at a time.

Orders are obeyed as they are heard, also while a batch runs; batches take turns. A GPU that works by itself
(`Launching` in the backends' contract) goes from one batch to the next at once, and the host gathers inputs
and writes replies meanwhile.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, cast

from astrarium.core.optional import extension
from astrarium.serving.live import messages
from astrarium.serving.live.backends import contract
from astrarium.serving.live.backends.contract import Place
from astrarium.serving.live.backends.precise_wait import Ready, Watch, watching
from astrarium.serving.live.garbage import GarbageKeeper
from astrarium.serving.live.messages import BatchDone, LoadModel, RunBatch
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.worker import device_health
from astrarium.serving.live.worker.batch_turn import BatchTurn, Clock
from astrarium.serving.live.worker.models import WorkerModels, error_text
from astrarium.serving.live.worker.slow_batches import SlowBatches


class FrontendGone(BaseException):
    """The frontend is gone, and with it everybody who waits; no model's code may catch this."""


GAVE_UP = 75  # the exit status of a worker that cannot go on
_QUIET = 0.05  # seconds without an order, or a ping (see LOOK_EVERY): nobody is in a hurry
_FIRST_LAUNCH = 1_000_000  # nanoseconds: what launching ahead may take, as long as nobody has measured it


class Worker:
    """A worker obeys the orders that come over *connection*.

    *clock* and *watch* (see precise_wait.py) may be others in tests. *garbage* is for a process that only
    serves: it turns Python's own collector off. *native* (a `BatchLoop` on the same connection) hears orders
    first: it runs the batches of `Timed` models, and passes on whatever else it hears. *leave* ends the
    process.
    """

    def __init__(
        self,
        connection: socket.socket,
        memory: SharedMemory,
        place: Place,
        clock: Clock = monotonic_ns,
        watch: Watch = watching,
        garbage: GarbageKeeper | None = None,
        native: Any | None = None,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self._native = native
        self._leave = leave
        self._connection = connection
        self._memory = memory
        self._clock = clock
        self._packet = memoryview(bytearray(messages.LARGEST_MESSAGE))
        self._watch = watch(connection.fileno(), self._listen_while_waiting)
        self._models = WorkerModels(place, clock, self, native)
        self._turns: deque[BatchTurn] = deque()
        self._running: BatchTurn | None = None
        self._cancelled: dict[int, int] = {}  # runs to stop or skip, with how long to recover
        self._gpu_free = 0  # when the GPU is done with what it was given
        self._launch_time = _FIRST_LAUNCH
        self._leaving = False
        self._slow = SlowBatches(clock, self.send)
        self._garbage = garbage
        self._unsettled = False  # models were loaded since the garbage keeper last looked at all there is

    def serve(self) -> None:
        """Serve until told to stop, or until the other end is gone."""
        self.hold_garbage()
        self.send(messages.WorkerUp(os.getpid()))
        while self._turns or not self._leaving:
            if self._turns:
                self._run_turn(self._turns.popleft())
            elif self._await_turn():
                self._collect_garbage()
            self._models.close_retired(self._turns)

    def _await_turn(self) -> bool:
        """Hear orders; return whether none came for a while."""
        if self._native is not None:
            self._serve_natively()
            return not (self._turns or self._models.to_close or self._leaving)
        if self._has_garbage and not select.select([self._connection], [], [], _QUIET)[0]:
            return True
        self._listen()
        return False

    def _serve_natively(self) -> None:
        module: Any = extension("_worker")
        try:
            self._gpu_free = cast(Any, self._native).serve(self._gpu_free, self._obey_from_native)
        except module.DeviceLost:  # native code has said so
            self._leave(GAVE_UP)

    def _obey_from_native(self, packet: bytes, received: int) -> bool:
        """Obey an order that native code has heard; return whether it must wait for something here."""
        if not packet:
            raise FrontendGone
        self._obey(messages.decode_order(packet), received)
        return bool(self._turns or self._models.to_close or self._leaving)

    def _listen(self) -> None:
        size = self._connection.recv_into(self._packet)  # new memory for the largest message would cost 10 us
        received = self._clock()
        if not size:
            raise FrontendGone
        self._obey(messages.decode_order(self._packet[:size]), received)

    def hold_garbage(self) -> None:
        self._unsettled = True
        if self._garbage is not None:
            self._garbage.hold()

    @property
    def _has_garbage(self) -> bool:
        return self._garbage is not None and (self._unsettled or self._garbage.worth_it)

    def _collect_garbage(self) -> None:
        if self._garbage is not None and self._has_garbage:
            collect = self._garbage.settle if self._unsettled else self._garbage.idle_moment
            self._unsettled = False  # before: a thread may load a model meanwhile
            collect()

    def _obey(self, order: messages.Order, received: int) -> None:
        match order:
            case RunBatch():
                served = self._models.get(order.model)
                self._turns.append(BatchTurn(order, received, served, self._memory.view))
            case messages.CancelBatch(tag, recovery):
                if any(turn.order.tag == tag for turn in (self._running, *self._turns) if turn):
                    self._cancelled[tag] = recovery  # else it has ended, and its end is on the way
            case LoadModel():
                self._models.load(order)
            case messages.UnloadModel(model):
                self._models.unload(model)
            case messages.Ping(sent):
                self.send(messages.Pong(sent, received))
            case messages.Stop():
                self._leaving = True

    def wait_until(self, instant: int, ready: Ready | None = None) -> bool:
        """Wait, hear orders and launch ahead meanwhile; see `Wait`."""
        self._launch_ahead(instant)
        return self._watch(instant, ready)

    def _listen_while_waiting(self, until: int) -> bool:
        """Hear an order while waiting for an instant; return whether it ends the batch that runs."""
        self._listen()
        self._launch_ahead(until)
        return self._running is not None and self._running.order.tag in self._cancelled

    def send(self, news: messages.News) -> None:
        self._connection.send(messages.encode(news))

    def _launch_ahead(self, until: int) -> None:
        """Launch the batches that the GPU lacks, up to the first that must wait for the host or its model.

        *until* is when the batch that runs is expected to end.
        """
        if self._running is not None and (not self._running.launched or self._running.is_launching):
            return
        for turn in self._turns:
            if turn.is_launching:
                return
            if not turn.launched:
                if not turn.launches or not self._may_launch(turn, until):
                    return
                self._launch(turn)

    def _may_launch(self, turn: BatchTurn, until: int) -> bool:
        if not turn.in_flight:  # it begins in time if launched later; what runs must be answered in time
            return self._clock() + self._launch_time < until
        launched = [other for other in (self._running, *self._turns) if other and other.launched]
        if not launched and turn.not_before > self._clock():
            return False
        return sum(other.with_gpu for other in launched if other.served is turn.served) < turn.in_flight

    def _launch(self, turn: BatchTurn) -> None:
        before = self._clock()
        turn.launch()
        self._launch_time = 2 * (self._clock() - before)

    def _run_turn(self, turn: BatchTurn) -> None:
        self._running = turn
        tag = turn.order.tag
        started = max(self._gpu_free, turn.not_before)
        try:
            self.send(self._carried_out(turn))
        except contract.Interrupted:
            self._recover(tag, started)
        except FrontendGone:
            raise
        except BaseException as error:  # `sys.exit()` in a model breaks its batch, not the worker
            self.check_device(tag)
            self._gpu_free = self._clock()
            self.send(
                messages.BatchBroken(tag, min(started, self._gpu_free), self._gpu_free, error_text(error))
            )
        self._running = None
        self._slow.add(turn)
        self._slow.tell(idle=not self._turns)
        if self._garbage is not None:
            self._garbage.busy_moment()

    def check_device(self, tag: int) -> None:
        """Leave where the batch that failed has taken the GPU's context with it: no later one could run."""
        if why := device_health.lost():
            self.send(messages.WorkerBroken(tag, why))
            self._leave(GAVE_UP)

    def _carried_out(self, turn: BatchTurn) -> BatchDone:
        tag = turn.order.tag
        received = turn.received
        now = self._clock()
        if tag in self._cancelled or (turn.awaits_start and not self.wait_until(turn.order.start)):
            raise contract.Interrupted
        if not turn.order.members:
            return BatchDone(tag, received, now, now, now, now)
        if turn.launches and not turn.launched:
            self._launch(turn)
        started, ran = turn.take(self._gpu_free, self._clock)
        self._gpu_free = ran.ended
        if tag in self._cancelled:
            raise contract.Interrupted  # it could not be stopped, but nobody waits for these answers now
        shapes = turn.reply(ran.result)
        own = list(ran.result.own_times)
        return BatchDone(tag, received, started, ran.began, ran.ended, self._clock(), shapes, own)

    def _recover(self, tag: int, started: int) -> None:
        stopped = self._clock()
        recovery = self._cancelled.pop(tag)
        self._running = None
        self._gpu_free = stopped + recovery
        self.wait_until(self._gpu_free)
        self.send(messages.BatchCancelled(tag, min(started, stopped), stopped))
