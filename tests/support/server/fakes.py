"""A service without workers, and the protocols served over it on loopback, for tests."""

from __future__ import annotations

import asyncio
import mmap
import threading
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPResponse
from importlib import import_module
from time import monotonic_ns
from typing import Any, Literal

import uvloop

from astrarium.server.client_errors import ClientErrors
from astrarium.server.contract import (
    HeldInput,
    InferAnswer,
    InferCall,
    Kind,
    ModelCard,
    ModelState,
    NumberedCard,
    Refused,
    Stages,
)
from astrarium.server.grpc.server import serve_grpc
from astrarium.server.http.server import RunningHttp, serve_http
from astrarium.server.protocol.network_threads import NativeThreads
from astrarium.server.settings import Address, HttpLimits, Security
from astrarium.server.statistics import BatchStatistics, Duration, InferStatistics, StatisticsOfModel
from astrarium.serving.live.layout import aligned, tensors_at
from astrarium.serving.live.ranges import RANGES, is_real
from astrarium.serving.live.tensors import BYTES, DATATYPES, Tensor, TensorSpec, pack_bytes, unpack_bytes

MS = 1_000_000
HOUR = 3_600_000 * MS


def echo_card(name: str, *specs: tuple[Any, ...], max_batch: int = 8) -> ModelCard:
    """A model whose output OUT_x is its input x; specs may have limits."""
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
    changed: Callable[[], None] = lambda: None  # called after models were loaded or unloaded
    client_errors: ClientErrors = field(default_factory=ClientErrors)

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
        cards += [echo_card(f"few_{kind.lower()}", ("IN", kind, (-1,), (0, 5))) for kind in RANGES]
        cards += [
            echo_card(f"finite_{kind.lower()}", ("IN", kind, (-1,), None, True))
            for kind in RANGES
            if is_real(kind)
        ]
        self.models = {card.name: card for card in cards}
        self._state("absent", "UNAVAILABLE", "unloaded")

    def _state(self, name: str, state: ModelState, reason: str = "") -> None:
        self.models[name] = replace(self.models[name], state=state, reason=reason)

    def went_long_way(self, reason: str) -> None:
        self.long_way.append(reason)

    def quarantine(self, model: str) -> list[HeldInput]:
        return [HeldInput("00ff", "it broke a worker", 5.0, 1.0)] if model == "echo" else []

    def release(self, model: str) -> int:
        return len(self.quarantine(model))

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
        outputs = [
            Tensor(f"OUT_{tensor.name}", *tensor[1:3], memoryview(tensor.data)) for tensor in call.inputs
        ]
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
        self.changed()

    async def unload(self, model: str) -> None:
        self._state(model, "UNAVAILABLE", "unloaded")
        self.changed()

    def statistics(self, model: str) -> StatisticsOfModel:
        rows = self.rows[model]
        spent = {size: Duration(count, 5000 * count) for size, count in sorted(rows.items())}
        tally = Duration(rows.total(), 5000 * rows.total())
        items = sum(size * count for size, count in rows.items())
        stages = InferStatistics(tally, Duration(1, 7), tally, tally, tally, tally)
        batches = [BatchStatistics(size, one, one, one) for size, one in spent.items()]
        return StatisticsOfModel(model, "1", 1234, items, tally.count, stages, batches)

    def metrics(self) -> bytes:
        return b"# TYPE fake_up gauge\nfake_up 1\n"

    def timeline(self, last: int) -> bytes:
        return b'{"traceEvents":[],"last":%d}' % last


class FakeFront:
    """The native way into a FakeService: network threads read the calls, and Python answers them by hand.

    Models that refuse or fail go the long way: what they say is not what a scheduler would.
    """

    def __init__(self, service: FakeService, threads: int) -> None:
        native: Any = import_module("astrarium._front")
        testing: Any = import_module("astrarium._testing")
        self._service = service
        self.threads = threads
        self._names = list(service.models)
        self._memory = memoryview(mmap.mmap(-1, 1 << 26))
        self.exchange = native.Exchange(self._memory, len(self._names), most_open=10_000, origins=2 * threads)
        self._loopback = testing.Loopback(self.exchange)
        self.taken = 0
        self._cards: dict[str, tuple[ModelCard, ModelCard]] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        asyncio.get_running_loop().add_reader(self._loopback.fd(), self._hear)
        self._hear()  # it asks for the bell to be rung

    def cards(self) -> list[NumberedCard]:
        return [
            NumberedCard(index, self._patient(self._service.models[name]), _refuses(name))
            for index, name in enumerate(self._names)
        ]

    def _patient(self, card: ModelCard) -> ModelCard:
        """The same for the same card; no call of it is too late, however busy the machine is."""
        known, patient = self._cards.get(card.name, (None, card))
        if known is not card:
            patient = replace(card, slo=HOUR, priorities=dict.fromkeys(card.priorities, HOUR))
            self._cards[card.name] = card, patient
        return patient

    def _hear(self) -> None:
        for ticket in self._loopback.pop():
            self.taken += 1
            task = asyncio.get_running_loop().create_task(self._answer(*ticket))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _answer(self, number: int, model: int, rows: int, *more: Any) -> None:
        _, received, _, block, replies, room, shapes, timeout_us, priority, application, patience = more
        card = self._service.models[self._names[model]]
        views = tensors_at(self._memory, block, card.inputs, shapes)
        tensors = [Tensor(one[0], one[1], tuple(one[2]), bytes(one.data)) for one in views]
        timeout = timeout_us * 1000 or None
        wished = timeout, priority, application, patience or None
        call = InferCall(card.name, tensors, rows, received, *wished)
        answer = await self._service.infer(call)
        shapes = []
        for row, contents in enumerate(zip(*(_by_row(one, rows) for one in answer.outputs), strict=True)):
            place = replies + row * room
            for content in contents:
                self._memory[place : place + len(content)] = content
                place += aligned(len(content))
            pairs = zip(answer.outputs, contents, strict=True)
            shapes.append([((1, *one.shape[1:]), len(content)) for one, content in pairs])
        answer.release()
        self._loopback.end(number, shapes=shapes)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._loopback.fd())


def _by_row(tensor: Tensor, rows: int) -> list[bytes]:
    if tensor.datatype != BYTES:
        size = len(tensor.data) // rows
        return [bytes(tensor.data[row * size : (row + 1) * size]) for row in range(rows)]
    texts = unpack_bytes(tensor.data)
    count = len(texts) // rows
    return [pack_bytes(texts[row * count : (row + 1) * count]) for row in range(rows)]


class LoopbackFront:
    """The native way to a loopback, which answers calls with their own inputs, or ends them as it is told."""

    def __init__(
        self, *cards: ModelCard, threads: int = 1, memory: int = 1 << 26, most_open: int = 10_000
    ) -> None:
        native: Any = import_module("astrarium._front")
        testing: Any = import_module("astrarium._testing")
        self.threads = threads
        self.models = list(cards)
        self.memory = memoryview(mmap.mmap(-1, memory))
        self.exchange = native.Exchange(self.memory, len(cards), most_open, 2 * threads)
        self.loopback = testing.Loopback(self.exchange)

    def cards(self) -> list[NumberedCard]:
        return [NumberedCard(index, card) for index, card in enumerate(self.models)]

    async def popped(self, count: int = 1) -> list[Any]:
        """That many tickets, which are then ours to end."""
        calls: list[Any] = []

        def enough() -> bool:
            calls.extend(self.loopback.pop())
            return len(calls) >= count

        await until(enough)
        return calls


def _refuses(model: str) -> str:
    return "refuses" if model in REFUSALS or model == "buggy" else ""


Port = int
Way = Literal["native", "long"]  # how requests come in: read by network threads, or by uvicorn
WAYS: tuple[Way, ...] = ("native", "long")


@dataclass(frozen=True)
class Served:
    """A FakeService behind both protocols, in a thread with an event loop of its own."""

    service: FakeService
    front: FakeFront | None  # where network threads read
    loop: asyncio.AbstractEventLoop
    http: Port
    grpc: Port
    running: RunningHttp

    @property
    def taken(self) -> int:
        """Calls that network threads have read."""
        return 0 if self.front is None else self.front.taken

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[HTTPResponse, bytes]:
        """Send one request over a connection of its own, and return the response with its content."""
        connection = HTTPConnection("127.0.0.1", self.http, timeout=60)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response, content

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
    way: Way = "native",
    threads: int = 1,
) -> AsyncIterator[Served]:
    """Both protocols on any free port of loopback, inside the running loop."""
    tls = security is not None and security.certificate is not None
    front = FakeFront(service, threads) if way == "native" and not tls else None
    http = await serve_http(service, Address(), limits, security, front)
    grpc = await serve_grpc(service, Address(), limits, security, front)
    networks = [network for network in (http.network, grpc) if isinstance(network, NativeThreads)]

    def look() -> None:
        for network in networks:
            network.look()
            network.settle()

    service.changed = look
    try:
        yield Served(service, front, asyncio.get_running_loop(), http.port, grpc.port, http)
    finally:
        await http.stop(grace=1.0)
        await grpc.stop(grace=1.0)
        if front is not None:
            front.close()


@contextmanager
def served(
    limits: HttpLimits | None = None, security: Security | None = None, way: Way = "native"
) -> Iterator[Served]:
    """The same in a thread, for clients that block."""
    started: Future[tuple[Served, asyncio.Event]] = Future()

    async def serve() -> None:
        async with serving(FakeService(), limits, security, way) as both:
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


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


async def until_closed(port: Port) -> None:
    """Until nobody takes connections on *port* any more."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        writer.close()
        await asyncio.sleep(0.001)
