"""Virtual time for the live coordinator: an event loop and workers that a test can step and break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from math import prod
from typing import Any, NamedTuple, cast

import pytest
from msgspec import structs

from astrarium.core.choice import parameters_of
from astrarium.core.optional import extension
from astrarium.core.quantities import FOREVER, MILLISECOND, Time
from astrarium.server.contract import InferCall
from astrarium.server.control.calls.handler import CallHandler
from astrarium.server.control.calls.open_calls import OpenCalls
from astrarium.server.control.calls.preprocessing import Preprocessor
from astrarium.server.control.calls.tensor_store import TensorStore
from astrarium.server.control.calls.ticket import Tensors, Ticket
from astrarium.server.control.coordinator import Coordinator
from astrarium.server.control.plan import ModelPlan, ServingPlan
from astrarium.server.control.repository import Repository
from astrarium.server.control.texts.text_queue import TextQueue
from astrarium.server.control.workers.fleet import Fleet
from astrarium.server.control.workers.isolation import Isolation
from astrarium.server.service import LiveService
from astrarium.server.timelines import Timelines
from astrarium.serving.contract import (
    DynamicSpec,
    GpuSpec,
    Lengths,
    ModelSpec,
    Network,
    Request,
    Setup,
    latency_table,
)
from astrarium.serving.live.backends.contract import ModelFiles, Place
from astrarium.serving.live.messages import (
    BatchBroken,
    BatchCancelled,
    BatchDone,
    CancelBatch,
    LoadModel,
    ModelLoaded,
    ModelLoading,
    ModelRefused,
    ModelUnloaded,
    News,
    Order,
    Ping,
    Pong,
    RunBatch,
    UnloadModel,
    WorkerUp,
    decode_order,
    encode,
    files_from,
    unpacked,
)
from astrarium.serving.live.process import Death
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.tensors import Tensor, TensorSpec
from astrarium.serving.live.workers import Listener, WorkerSpec
from astrarium.serving.policies import serving_policies
from astrarium.serving.twin.live import faster

KILLED = Death("was killed by SIGKILL", by_its_work=False)
VALUES = TensorSpec("INPUT", "FP32", (2,))
ECHO = TensorSpec("OUTPUT", "FP32", (2,))


class OpenModel(NamedTuple):
    """What is known of a model whose requests have lengths: of one dimension, or by *sizes* of several."""

    lengths: Lengths
    sizes: tuple[tuple[int, ...], ...] = ()


class FakeLoop:
    """Time passes only in `run_until`."""

    def __init__(self, start: Time = 5_000_000_000) -> None:
        self.now = start
        self._order = 0
        self._heap: list[tuple[Time, int, Callable[[], None]]] = []

    def clock(self) -> Time:
        return self.now

    def soon(self, call: Callable[[], None]) -> None:
        self.at(self.now, call)

    def later(self, after: Time, call: Callable[[], None]) -> None:
        self.at(self.now + after, call)

    def at(self, moment: Time, call: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._heap, (max(moment, self.now), self._order, call))

    def run_until(self, end: Time = FOREVER) -> None:
        while self._heap and self._heap[0][0] <= end:
            self.now, _, call = heappop(self._heap)
            call()
        self.now = max(self.now, end) if end < FOREVER else self.now


class FakeWorkers:
    """Workers that take what the setup's tables say by size and length, and of dynamic models what the
    members need.

    Tests set `broken`, `stuck`, `stopped` and `refuses`.
    """

    def __init__(self, loop: FakeLoop, listener: Listener, setup: Setup) -> None:
        self._loop = loop
        self._listener = listener
        self._setup = setup
        self._life: Counter[int] = Counter()  # these three by worker
        self._free: Counter[int] = Counter()
        self._cancelled: dict[int, CancelBatch] = {}
        self.alive = {gpu.id: False for gpu in setup.gpus}
        self.broken: set[int] = set()  # models that raise
        self.stuck: set[int] = set()  # models that never end
        self.stopped: set[int] = set()  # workers whose process somebody has stopped
        self.refuses: set[int] = set()  # models that cannot be loaded
        self.deadly: dict[int, Death] = {}  # models whose batches end the worker, and how
        self.hanging_loads: set[int] = set()  # models whose load never ends
        self.deadly_loads: set[int] = set()  # models that end the worker that loads them
        self.poison: bytes | None = None  # only members whose inputs begin with this are deadly
        self.memory = memoryview(b"")
        self.start_takes = 50 * MILLISECOND
        self.gpu_of: dict[int, int] = {}  # by worker
        self.tensors: dict[int, Tensors] = {}  # by model
        self.slower = 1.0
        self.tells_own_times = True
        self.orders: list[tuple[int, Order]] = []

    def batches(self) -> list[RunBatch]:
        return [order for _, order in self.orders if isinstance(order, RunBatch)]

    def hush(self) -> None:
        """Nothing is on its way: news are told by the loop."""

    def start(self, spec: WorkerSpec) -> None:
        worker = spec.worker
        self.gpu_of[worker] = spec.place.gpu
        self._life[worker] += 1
        self.alive[worker], self._free[worker] = True, self._loop.now
        self._say(worker, self.start_takes, lambda: WorkerUp(1000 + worker))

    def send(self, worker: int, order: Order) -> None:
        if not self.alive[worker]:
            return
        self.orders.append((worker, order))
        match order:
            case LoadModel(model) if model in self.deadly_loads:
                self._say(worker, 2 * MILLISECOND, lambda: ModelLoading(model))  # after the others
                life = self._life[worker]
                self._loop.later(
                    3 * MILLISECOND, lambda: self._die(worker, life, Death("was killed by SIGSEGV"))
                )
            case LoadModel(model) if model in self.hanging_loads:
                self._say(worker, 2 * MILLISECOND, lambda: ModelLoading(model))
            case LoadModel(model, plain):
                files = files_from(plain)
                self.tensors[model] = Tensors(files.inputs, files.outputs, files.sizes)
                self._say(worker, MILLISECOND, lambda: ModelLoading(model))
                news: News = ModelLoaded(model, files.inputs, files.outputs)
                if model in self.refuses:
                    news = ModelRefused(model, "no such file")
                self._say(worker, MILLISECOND, lambda: news)
            case UnloadModel(model):
                self._say(worker, MILLISECOND, lambda: ModelUnloaded(model))
            case RunBatch():
                self._run(worker, order)
            case CancelBatch(tag):
                self._cancelled[tag] = order
            case Ping(sent):
                self._say(worker, 0, lambda: Pong(sent, self._loop.now))

    def kill(self, worker: int, death: Death = KILLED) -> None:
        if self.alive[worker]:
            self.alive[worker] = False
            self._life[worker] += 1
            self._loop.soon(lambda: self._listener.died(worker, death))

    def crash(self, worker: int, reason: str = "exited with status 1") -> None:
        self.kill(worker, Death(reason))

    def _die(self, worker: int, life: int, death: Death) -> None:
        if self._life[worker] == life:
            self.kill(worker, death)

    async def stop(self, grace: float) -> None:
        self.alive = dict.fromkeys(self.alive, False)

    def pids(self) -> dict[int, int]:
        return {}

    def is_stopped(self, worker: int) -> bool:
        return worker in self.stopped

    def in_reserve(self) -> int:
        return 0

    def _run(self, worker: int, order: RunBatch) -> None:
        if order.model in self.stuck:
            return
        start = max(self._loop.now, order.start, self._free[worker])
        own = self._own_times(order)
        end = self._free[worker] = start + round(self._takes(order, own) * self.slower)
        if order.model in self.deadly and self._is_poisoned(order):
            life = self._life[worker]
            death = self.deadly[order.model]
            self._loop.at(end, lambda: self._die(worker, life, death))
            return
        self._say(worker, end - self._loop.now, lambda: self._ended(order, start, end, own))

    def _takes(self, order: RunBatch, own: list[Time]) -> float:
        size = max(1, order.size)
        model = self._setup.models[order.model]
        if model.dynamic is not None:
            return model.dynamic.c0 + model.dynamic.c1 * size * max(own)
        lengths = model.lengths
        if lengths is None:
            return model.latency[size]
        members = [self.tensors[order.model].length_of(shapes) for shapes in order.shapes or []]
        return model.takes([Request(0, 0, 0, 0, 0, length, lengths.bucket_of(length)) for length in members])

    def _is_poisoned(self, order: RunBatch) -> bool:
        if self.poison is None:
            return True
        blocks = [member.block for member in unpacked(order.members)]
        return any(self.memory[block : block + len(self.poison)] == self.poison for block in blocks)

    def _own_times(self, order: RunBatch) -> list[Time]:
        """What each member takes alone: the longer, the later its application; else by where it lies."""
        if self._setup.models[order.model].dynamic is None:
            return []
        members = unpacked(order.members)
        return [(1 + 3 * one.application + (one.block // 64 + one.row) % 3) * MILLISECOND for one in members]

    def _ended(self, order: RunBatch, start: Time, end: Time, own: list[Time]) -> News:
        if order.tag in self._cancelled:
            return BatchCancelled(order.tag, start, end)
        if order.model in self.broken:
            return BatchBroken(order.tag, start, end, "ValueError: no")
        return BatchDone(
            order.tag, start, start, start, end, end, own_times=own if self.tells_own_times else []
        )

    def _say(self, worker: int, after: Time, news: Callable[[], News]) -> None:
        life = self._life[worker]

        def tell() -> None:
            if self._life[worker] == life:
                self._listener.heard(worker, news())

        self._loop.later(after, tell)


class VirtualScheduler:
    """The native scheduler in virtual time; it hears what workers say of batches before the fleet does."""

    def __init__(self, loop: FakeLoop, models: int, gpus: int, memory: memoryview) -> None:
        testing = extension("_testing")
        assert testing is not None
        self._loop = loop
        self._steps = testing.Steps(models, gpus, memory)
        self.admission = self._steps.admission
        self.waiting = self._steps.waiting
        self.retried = self._steps.retried
        self.policy_errors = self._steps.policy_errors
        self.oldest = self._steps.oldest
        self.batches = self._steps.batches
        self.profile = self._steps.profile
        self.thinking_since = 0
        self._ended: list[Any] = []
        self._due = FOREVER
        self.stage: Stage | None = None

    def thinks_since(self) -> int:
        return self.thinking_since

    def begin(self, setup: Any, parameters: Any) -> None:
        self._steps.begin(setup, parameters, self._loop.now)
        self._soon()

    def begin_in_python(self, setup: Any, name: str, make: Callable[[], Any]) -> None:
        self._steps.begin_in_python(setup, name, make, self._loop.now)
        self._soon()

    def worker_joined(self, worker: int) -> None:
        self._steps.worker_joined(worker, self._loop.now)
        self._soon()

    def worker_left(self, worker: int, *loss: Any) -> tuple[int, int, bool]:
        blame: tuple[int, int, bool] = self._steps.worker_left(worker, *loss, self._loop.now)
        self._soon()
        return blame

    def set_apart(self, model: int, workers: list[int]) -> None:
        self._steps.set_apart(model, workers, self._loop.now)
        self._soon()

    def quarantined(self) -> list[Any]:
        return list(self._steps.quarantined(self._loop.now))

    def release(self, model: int) -> int:
        return int(self._steps.release(model))

    def arrive(self, *call: Any) -> bool:
        self._steps.arrive(*call, self._loop.now)
        self._soon()
        return True

    def heard(self, worker: int, news: News) -> None:
        assert self.stage is not None
        if self._steps.hear(worker, encode(news), self._loop.now):
            self._soon()
        else:
            self.stage.fleet.heard(worker, news)

    def died(self, worker: int, death: Death) -> None:
        assert self.stage is not None
        self.stage.fleet.died(worker, death)

    def ended(self) -> list[Any]:
        ended = self._ended
        self._ended = []
        return ended

    def astray(self, open_in_python: int) -> int:
        held: int = self._steps.held()
        admitted: int = self.admission.open()
        return abs(held - open_in_python) + abs(admitted - open_in_python)

    def troubles(self) -> list[tuple[int, str]]:
        return []

    def close(self) -> None:
        self._steps.close()
        self._step()

    def _soon(self) -> None:
        self._loop.soon(self._step)

    def _step(self) -> None:
        assert self.stage is not None
        due, orders, ended = self._steps.step(self._loop.now)
        self._ended += ended
        for worker, packet in orders:
            self.stage.workers.send(worker, decode_order(packet))
        self.stage.coordinator.collect()
        self.stage.coordinator.sync()
        if due <= self._loop.now:
            self._soon()  # a batch could not be sent: the policy hears of it at once
        elif due < FOREVER and due != self._due:
            self._loop.at(due, self._step)
        self._due = due


class FakeAnswer:
    """Stands for the future that a call waits on."""

    def __init__(self) -> None:
        self.results = 0

    def done(self) -> bool:
        return False

    def set_result(self, result: None) -> None:
        self.results += 1


class Stage:
    """A coordinator with everything around it, in virtual time.

    *natively*: the policy's twin decides; else the policy itself, and `steps` has what it heard and decided.
    """

    natively = False  # where a test does not say

    def __init__(
        self,
        gpus: int = 2,
        models: int = 1,
        policy: str = "eager",
        slo_ms: int = 25,
        memory: int = 1 << 20,
        applications: int = 0,
        isolates: bool = True,
        open_model: OpenModel | None = None,
    ) -> None:
        self.loop = FakeLoop()
        self._calls = count(1)
        plan = make_plan(gpus, models, policy, slo_ms * MILLISECOND, memory, applications)
        plan = plan if open_model is None else with_open_model(plan, open_model)
        self.policies = list[Any]()
        self.steps = list[Any]()
        self.plan = replace(plan, new_policy=noting(plan.new_policy, self.policies))
        self.ended: list[Ticket] = []
        front: Any = extension("_front")
        self.tensor_store = TensorStore(SharedMemory.create(memory), front.Arena(memory))
        view = self.tensor_store.memory.view
        note = self.steps.append
        self.scheduler = VirtualScheduler(self.loop, models, gpus, view)
        scheduler = cast(Any, self.scheduler)
        self.open_calls = OpenCalls(scheduler, self.tensor_store, self._ticket_ended)
        parts = self.plan, scheduler, self.open_calls, self.loop.clock
        self.coordinator = Coordinator(*parts, lambda setup: note)
        self.fleet = self.coordinator.fleet = Fleet(
            self.plan.workers, self.coordinator, self.loop.clock, self.loop.later
        )
        self.repository = self.coordinator.repository = Repository(self.plan.models, self.fleet)
        self.told = 0  # how often network threads would have been told of models
        self.isolation = Isolation(
            self.repository, self.fleet, self.coordinator, self.loop.clock, self._changed
        )
        if not isolates:
            self.fleet.blamed = lambda blame, reason: None
        self.scheduler.stage = self
        self.workers = FakeWorkers(self.loop, self.scheduler, self.plan.setup)
        self.workers.memory = view
        self.repository.start()
        self.fleet.start(self.workers)
        self.wait(100)
        self.began = self.loop.now
        self.coordinator.begin(self.plan.setup)

    @property
    def policy(self) -> Any:
        """The one that decides now, in Python."""
        return self.policies[-1]

    def _changed(self) -> None:
        self.told += 1

    def wait(self, ms: float) -> None:
        self.loop.run_until(self.loop.now + round(ms * MILLISECOND))

    def call(
        self,
        model: int = 0,
        rows: int = 1,
        timeout_ms: float | None = None,
        received: Time | None = None,
        made: bool = True,
        application: int = 0,
        data: bytes | None = None,
        shape: tuple[int, ...] = VALUES.shape,
    ) -> Ticket:
        """Take a call; its inputs are still being made where they are not *made*.

        *data* begins them; without any, no two calls have the same.
        """
        data = next(self._calls).to_bytes(8) if data is None else data
        tensor = Tensor("INPUT", "FP32", (rows, *shape), data + bytes(4 * rows * prod(shape) - len(data)))
        name = self.plan.models[model].name
        call = InferCall(name, [tensor], rows, self.loop.now if received is None else received)
        slo = self.plan.models[model].slo if timeout_ms is None else round(timeout_ms * MILLISECOND)
        tensors = self.repository.entries[model].tensors
        ticket = Ticket(call, model, tensors, application, call.received + slo, FakeAnswer())
        assert self.tensor_store.take_in(ticket, call.inputs)
        self.coordinator.accounts.models[model].accepted += 1
        ticket.inputs_ready = made
        self.coordinator.open_calls.take(ticket)
        return ticket

    def check_the_accounts(self) -> None:
        """Nothing open, nothing unaccounted, no memory kept."""
        accounts = self.coordinator.accounts.models
        assert len(self.open_calls) == 0
        assert sum(one.open for one in accounts) == 0
        assert sum(sum(one.ended.values()) for one in accounts) == len(self.ended)
        assert all(ticket.answer.results == 1 for ticket in self.ended)  # type: ignore[attr-defined]
        assert self.tensor_store.arena.used == 0

    def _ticket_ended(self, ticket: Ticket) -> None:
        self.ended.append(ticket)
        took = self.loop.now - ticket.call.received
        self.coordinator.accounts.models[ticket.model].call_ended(ticket.outcome, ticket.cause, took)
        ticket.answer.set_result(None)
        self.open_calls.release(ticket)


def handler_of(stage: Stage) -> CallHandler:
    """Return a handler of calls on a stage, which hears how they end."""
    preprocessor = Preprocessor(stage.tensor_store, lambda: None)
    clock = stage.loop.clock
    texts = texts_of(stage)
    handler = CallHandler(
        stage.coordinator, stage.repository, preprocessor, texts, Timelines(), clock, lambda: ""
    )
    stage.open_calls.on_end = handler.ticket_ended
    return handler


def texts_of(stage: Stage, needed: Time = 0) -> TextQueue:
    """Return a queue of texts on a stage."""
    front: Any = extension("_front")
    native = front.TextQueue(len(stage.plan.models), stage.tensor_store.arena.size)
    ready = stage.open_calls.inputs_made
    return TextQueue(native, stage.tensor_store, ready, stage.loop.clock, lambda _: needed)


def service_of(plan: ServingPlan, loop: FakeLoop) -> LiveService:
    """Return a service whose workers and clock are those of a loop; its scheduler lives in real time."""
    return LiveService(
        plan, lambda _, listener, __: FakeWorkers(loop, listener, plan.setup), clock=loop.clock
    )


def admit(stage: Stage, handler: CallHandler, rows: int = 1, **request_options: Any) -> None:
    """Let a call in that comes now; nobody waits for its end."""
    data = Tensor("INPUT", "FP32", (rows, 2), bytes(8 * rows))
    call = InferCall("m0", [data], rows, stage.loop.now, **request_options)
    handler._admit(call, stage.repository.entries[0], FakeAnswer())


def noting(make: Callable[[Setup], Any], policies: list[Any]) -> Callable[[Setup], Any]:
    """Note each policy that is made."""

    def made(setup: Setup) -> Any:
        policies.append(make(setup))
        return policies[-1]

    return made


PATHS = ["python", "native"]
NATIVE = [name for name in serving_policies.names() if getattr(serving_policies.get(name), "live_twin", "")]


def on_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Policies and their twins keep the same promises; a test marked `in_python` is about policies alone."""
    if request.param == "native" and request.node.get_closest_marker("in_python"):
        pytest.skip("it is about policies in Python")
    monkeypatch.setattr(Stage, "natively", request.param == "native")
    return str(request.param)


def make_plan(
    gpus: int, models: int, policy: str, slo: Time, memory: int, applications: int = 0
) -> ServingPlan:
    """Of every two models one is dynamic where there are *applications*; only the first has a history."""
    table = latency_table([(5 + size) * MILLISECOND for size in range(1, 9)])
    history = [tuple(range(MILLISECOND, 2 * MILLISECOND, MILLISECOND // 20)), *[()] * (applications - 1)]
    dynamic = DynamicSpec(MILLISECOND, 0.4, tuple(history)) if applications else None
    kinds = [dynamic if index % 2 == 0 else None for index in range(models)]
    specs = tuple(ModelSpec(index, f"m{index}", slo, table, kind) for index, kind in enumerate(kinds))
    setup = Setup(specs, tuple(GpuSpec(gpu) for gpu in range(gpus)), Network())
    factory = serving_policies.get(policy)
    combine = (lambda new, chosen: faster(chosen, new)) if Stage.natively else (lambda new, chosen: chosen)
    return ServingPlan(
        setup=setup,
        models=tuple(_model(index, slo) for index in range(models)),
        workers=tuple(WorkerSpec(gpu, Place(gpu)) for gpu in range(gpus)),
        policy_name=policy,
        new_policy=lambda new: combine(new, factory(new, parameters_of(factory)())),
        profiled_share=1.0,
        python_policy="" if Stage.natively else "a test says so",
        queue=1000,
        memory=memory,
        measured_delays=False,
        uvicorn="" if Stage.natively else "server_path",
    )


def with_open_model(plan: ServingPlan, known: OpenModel) -> ServingPlan:
    """Return the plan with a first model whose input is open."""
    spec, *specs = plan.setup.models
    first, *others = plan.models
    opened = structs.replace(spec, latency=known.lengths.latency[-1], lengths=known.lengths)
    taken = TensorSpec("INPUT", "FP32", (-1,) * (len(known.sizes[0]) if known.sizes else 1))
    files = {kind: replace(own, inputs=(taken,), sizes=known.sizes) for kind, own in first.files.items()}
    setup = structs.replace(plan.setup, models=(opened, *specs))
    return replace(plan, setup=setup, models=(replace(first, files=files), *others))


def _model(index: int, slo: Time) -> ModelPlan:
    files = ModelFiles(f"m{index}", "emulated", {}, (VALUES,), (ECHO,), 8)
    return ModelPlan(index, f"m{index}", {"gpu": files}, slo, 8, True, {}, (), None, ())
