"""A service without workers, and the protocols served over it on loopback, for tests."""

from __future__ import annotations

import asyncio
import mmap
import threading
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic_ns

import uvloop

from astrarium.server.contract import (
    Deliver,
    Delivery,
    ExpressClient,
    Full,
    InferAnswer,
    InferCall,
    Kind,
    ModelCard,
    ModelState,
    ModelStatistics,
    PackedCall,
    Refused,
    Stages,
    TimedCount,
)
from astrarium.server.grpc.server import serve_grpc
from astrarium.server.http.server import serve_http
from astrarium.server.settings import Address, HttpLimits, Security
from astrarium.serving.live.arena import aligned, block_bytes, tensors_at
from astrarium.serving.live.tensors import DATATYPES, Tensor, TensorSpec

MS = 1_000_000


def echo_card(name: str, *specs: tuple[str, str, tuple[int, ...]], max_batch: int = 8) -> ModelCard:
    """A model whose output OUT_x is its input x."""
    inputs = tuple(TensorSpec(*spec) for spec in specs)
    outputs = tuple(TensorSpec(f"OUT_{spec.name}", spec.datatype, spec.shape) for spec in inputs)
    return ModelCard(name, "fake", inputs, outputs, max_batch, slo=100 * MS, priorities={1: 10**9, 2: 10**9})


REFUSALS = {
    "overloaded": Refused(Kind.OVERLOADED, "model overloaded: 9 requests wait already", retry_after=0.25),
    "late": Refused(Kind.DEADLINE, "model late: 3 ms are left, a batch takes 5 ms"),
    "broken": Refused(Kind.MODEL_FAILED, "model broken: ValueError: no such layer"),
    "draining": Refused(Kind.UNAVAILABLE, "model draining: the server is shutting down", retry_after=3.5),
    "huge": Refused(Kind.TOO_LARGE, "model huge: its inputs do not fit in shared memory"),
}


@dataclass
class FakeService:
    """Echoes. Models of REFUSALS refuse, `absent` is not loaded, `buggy` raises what no service should,
    `slow` waits for the gate."""

    ready: bool = True
    calls: deque[InferCall] = field(default_factory=lambda: deque(maxlen=100))
    rows: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))  # calls by their rows
    refusals: Counter[str] = field(default_factory=Counter)  # calls that never became one, by model
    held: int = 0  # answers not released
    models: dict[str, ModelCard] = field(default_factory=dict)
    gate: asyncio.Event | None = None
    long_way: list[str] = field(default_factory=list)  # why calls did not go the short way

    def __post_init__(self) -> None:
        one = ("IN", "FP32", (-1,))
        cards = [
            echo_card("echo", one),
            echo_card("ints", ("IN", "INT64", (2, 2))),
            echo_card("text", ("IN", "BYTES", (-1,))),
            echo_card("pair", ("A", "INT32", (3,)), ("B", "INT32", (3,))),
            echo_card("scalar", ("IN", "FP64", ())),
            *(echo_card(name, one) for name in [*REFUSALS, "absent", "buggy", "slow"]),
        ]
        cards += [echo_card(f"all_{kind.lower()}", ("IN", kind, (-1,))) for kind in DATATYPES]
        self.models = {card.name: card for card in cards}
        self._state("absent", "UNAVAILABLE", "unloaded")

    def _state(self, name: str, state: ModelState, reason: str = "") -> None:
        self.models[name] = replace(self.models[name], state=state, reason=reason)

    def went_long_way(self, reason: str) -> None:
        self.long_way.append(reason)

    def turned_away(self, model: str, refused: Refused) -> None:
        self.refusals[model] += 1

    def cards(self) -> list[ModelCard]:
        return list(self.models.values())

    def card(self, model: str) -> ModelCard:
        if model not in self.models:
            raise Refused(Kind.NOT_FOUND, f"model: expected one that is served (got {model!r})")
        return self.models[model]

    async def infer(self, call: InferCall) -> InferAnswer:
        self.calls.append(call)
        self.rows[call.model][call.rows] += 1
        if call.model in REFUSALS:
            raise REFUSALS[call.model]
        if call.model == "buggy":
            raise ZeroDivisionError("a secret")
        if call.model == "slow" and self.gate is not None:
            await self.gate.wait()
        return self._echoed(call)

    def _echoed(self, call: InferCall) -> InferAnswer:
        outputs = [Tensor(f"OUT_{each.name}", *each[1:3], memoryview(each.data)) for each in call.inputs]
        now = monotonic_ns()
        stages = Stages(call.received, now, now + 2000, now + 5000, now + 9000, now + 10000)
        self.held += 1
        return InferAnswer(outputs, stages, call.rows, 0, True, self._release)

    def _release(self) -> None:
        self.held -= 1

    async def load(self, model: str) -> None:
        if model == "broken":
            raise Refused(Kind.MODEL_FAILED, "model broken: its file is no model")
        self._state(model, "READY")

    async def unload(self, model: str) -> None:
        self._state(model, "UNAVAILABLE", "unloaded")

    def statistics(self, model: str) -> ModelStatistics:
        rows = self.rows[model]
        tally = TimedCount(rows.total(), 5000 * rows.total())
        items = sum(size * count for size, count in rows.items())
        batches = {size: TimedCount(count, 5000 * count) for size, count in rows.items()}
        return ModelStatistics(
            model, "1", 1234, items, tally.count, tally, TimedCount(1, 7), tally, tally, tally, tally, batches
        )

    def metrics(self) -> bytes:
        return b"# TYPE fake_up gauge\nfake_up 1\n"

    def timeline(self, last: int) -> bytes:
        return b'{"traceEvents":[],"last":%d}' % last


class FakeExpress:
    """The short way into a FakeService: the same answers and refusals, from shared memory."""

    def __init__(self, service: FakeService) -> None:
        self._service, self._at = service, 0
        self._names = list(service.models)
        self.memory = memoryview(mmap.mmap(-1, 1 << 24))
        self.deliver: Deliver = lambda deliveries: None
        self.full: Full = lambda model, calls: None
        self.taken = self.hopeless_calls = self.needed_ns = 0
        self._waiting: set[asyncio.Task[None]] = set()

    def cards(self) -> list[tuple[int, ModelCard, str]]:
        return [(index, self.card(index), "") for index in range(len(self._names))]

    def keep_pace(self, now: int) -> None:
        """There is nothing to decide here."""

    def needed(self, model: int) -> int:
        return self.needed_ns

    def planned(self) -> object:
        return self

    def hopeless(self, model: int) -> None:
        self.hopeless_calls += 1

    def card(self, model: int) -> ModelCard:
        return self._service.models[self._names[model]]

    def take(self, client: ExpressClient, received: int) -> None:
        self.taken += 1
        packed = client.packed
        call = self._unpacked(packed, received)
        if call.model in REFUSALS:
            self._service.calls.append(call)
            raise REFUSALS[call.model]
        if call.model == "buggy":
            raise ZeroDivisionError("a secret")
        task = asyncio.get_running_loop().create_task(self._answer(client, packed, call))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def _unpacked(self, packed: PackedCall, received: int) -> InferCall:
        card, shapes, at = self.card(packed.model), packed.shapes, self._room(packed.block_bytes)
        packed.place(at)
        given = [
            Tensor(*one[:3], bytes(one.data)) for one in tensors_at(self.memory, at, card.inputs, shapes)
        ]
        timeout = packed.timeout_us * 1000 or None
        return InferCall(
            card.name, given, packed.rows, received, timeout, packed.priority, packed.application
        )

    async def _answer(self, client: ExpressClient, packed: PackedCall, call: InferCall) -> None:
        answer = await self._service.infer(call)
        shapes = [((1, *one.shape[1:]), len(one.data) // call.rows) for one in answer.outputs]
        room = block_bytes(shapes)
        at = self._room(room * call.rows)
        for row in range(call.rows):
            place = at + row * room
            for one, (_, size) in zip(answer.outputs, shapes, strict=True):
                self.memory[place : place + size] = one.data[row * size : (row + 1) * size]
                place += aligned(size)
        answer.release()
        self.deliver([Delivery(client, packed, at, room, shapes)])

    def _room(self, size: int) -> int:
        at, self._at = self._at, self._at + aligned(size)
        if self._at > len(self.memory):
            at, self._at = 0, aligned(size)
        return at


Port = int


@dataclass(frozen=True)
class Served:
    """A FakeService behind both protocols, in a thread with an event loop of its own."""

    service: FakeService
    express: FakeExpress
    loop: asyncio.AbstractEventLoop
    http: Port
    grpc: Port

    @property
    def http_url(self) -> str:
        return f"127.0.0.1:{self.http}"

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.grpc}"


@asynccontextmanager
async def serving(
    service: FakeService,
    limits: HttpLimits | None = None,
    security: Security | None = None,
    short_way: bool = True,
) -> AsyncIterator[Served]:
    """Both protocols on any free port of loopback, inside the running loop."""
    express = FakeExpress(service)
    http = await serve_http(service, Address(), limits, security, express if short_way else None)
    grpc = await serve_grpc(service, Address(), limits, security)
    try:
        yield Served(service, express, asyncio.get_running_loop(), http.port, grpc.port)
    finally:
        await http.stop(grace=1.0)
        await grpc.stop(grace=1.0)


@contextmanager
def served(
    limits: HttpLimits | None = None, security: Security | None = None, short_way: bool = True
) -> Iterator[Served]:
    """The same in a thread, for clients that block."""
    started: Future[tuple[Served, asyncio.Event]] = Future()

    async def serve() -> None:
        async with serving(FakeService(), limits, security, short_way) as both:
            stop = asyncio.Event()
            started.set_result((both, stop))
            await stop.wait()

    def run() -> None:
        try:
            uvloop.run(serve())
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    both, stop = started.result(timeout=20)
    try:
        yield both
    finally:
        both.loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=20)


async def until_closed(port: Port) -> None:
    """Until nobody takes connections on *port* any more."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        writer.close()
        await asyncio.sleep(0.001)
