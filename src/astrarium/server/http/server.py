"""The HTTP server serves the HTTP front, an ASGI application over a Service, with uvicorn.

It does so inside an event loop that is already running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Generator, MutableMapping
from time import monotonic_ns
from typing import Any

import uvicorn

from astrarium.core.errors import InputError
from astrarium.core.optional import extension
from astrarium.server import wire
from astrarium.server.contract import NativeFront, Refused, Service
from astrarium.server.http import bodies
from astrarium.server.http.bodies import BodyReader, Disconnected, HttpRefusal, Receive, Reply, Send
from astrarium.server.http.handlers import Handlers
from astrarium.server.http.network import NativeNetwork, NativeProtocol, native_protocol
from astrarium.server.http.protocol import BoundedProtocol, bounded_protocol
from astrarium.server.http.routing import RECEIVED, HttpRequest, Route, Router, described
from astrarium.server.native import listener_at, listeners_at
from astrarium.server.settings import Address, HttpLimits, Keys, Security

# Every operation over HTTP, in the order in which the description lists them.


_ONE = "/v2/models/{model}"
_AT_VERSION = "/v2/models/{model}/versions/{version}"
_CHANGE = "/v2/repository/models/{model}"
_CHANGE_FAILS: dict[str, Any] = {"answer": dict, "body": wire.ChangeRequest, "statuses": (429, 500, 503, 504)}
_INFER: dict[str, Any] = {
    "answer": wire.InferResponse,
    "body": wire.InferRequest,
    "statuses": (422, 429, 500, 503, 504),
}


def routes_of(handlers: Handlers) -> list[Route]:
    routes = [
        *_about_the_server(handlers),
        Route("GET", "/v2/models/stats", handlers.all_statistics, "All statistics", wire.StatisticsAnswer),
        *_about_a_model(handlers, _ONE),
        *_about_a_model(handlers, _AT_VERSION),
        *_repository(handlers),
        *_watching(handlers),
    ]
    handlers.description = described(routes)
    return routes


def _about_the_server(h: Handlers) -> list[Route]:
    health: dict[str, Any] = {"open": True}
    return [
        Route("GET", "/", h.pointers, "What this is and where to look", wire.Pointers),
        Route("GET", "/v2", h.server, "Server metadata", wire.ServerMetadata),
        Route("GET", "/v2/health/live", h.live, "Is the process up?", wire.Live, **health),
        Route("GET", "/v2/health/ready", h.ready, "Ready?", wire.Ready, statuses=(503,), **health),
    ]


def _about_a_model(h: Handlers, base: str) -> list[Route]:
    return [
        Route("GET", base, h.model, "Model metadata", wire.ModelMetadata),
        Route("GET", f"{base}/ready", h.model_ready, "Is it loaded?", wire.Ready, statuses=(503,)),
        Route("GET", f"{base}/config", h.config, "Model configuration", wire.ModelConfig),
        Route("GET", f"{base}/stats", h.statistics, "Model statistics", wire.StatisticsAnswer),
        Route("POST", f"{base}/infer", h.infer, "Inference", **_INFER),
    ]


def _repository(h: Handlers) -> list[Route]:
    index: dict[str, Any] = {"answer": list[wire.IndexEntry], "body": wire.IndexRequest}
    return [
        Route("POST", "/v2/repository/index", h.index, "All models and their states", **index),
        Route("POST", f"{_CHANGE}/load", h.load, "Load a model, or load it anew", **_CHANGE_FAILS),
        Route("POST", f"{_CHANGE}/unload", h.unload, "Unload a model", **_CHANGE_FAILS),
        Route("GET", f"{_CHANGE}/quarantine", h.quarantine, "Inputs that broke a worker", wire.Quarantine),
        Route("DELETE", f"{_CHANGE}/quarantine", h.release, "Let these inputs out", wire.Released),
    ]


def _watching(h: Handlers) -> list[Route]:
    last: dict[str, Any] = {"answer": dict, "query": {"last": wire.Last}}
    return [
        Route("GET", "/metrics", h.metrics, "Prometheus metrics", content="text/plain"),
        Route("GET", "/timeline", h.timeline, "The last requests and batches, for Perfetto", **last),
        Route("GET", "/openapi.json", h.openapi, "This description", dict),
    ]


log = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
# Liveness and readiness are for load balancers, which have no key.
OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})


class HttpFront:
    """The HTTP front is what uvicorn calls; every request gets an answer, whatever goes wrong behind it."""

    def __init__(
        self, service: Service, limits: HttpLimits | None = None, security: Security | None = None
    ) -> None:
        self.keys = Keys((security or Security()).keys)
        self.bodies = BodyReader(limits or HttpLimits())
        self.router = Router(routes_of(Handlers(service, self.bodies)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _without_http(scope, receive, send)
            return
        try:
            reply = await self._answer(scope, receive)
        except Disconnected:
            return
        await bodies.send_reply(send, reply)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        try:
            return await self._handled(scope, receive)
        except Refused as refused:
            return bodies.refusal(refused)
        except HttpRefusal as refused:
            return bodies.http_refusal(refused)
        except Disconnected:
            raise
        except Exception as error:
            log.exception("%s %s failed", scope["method"], scope["path"])
            return bodies.json_reply(
                wire.ErrorAnswer(f"the server failed, not the request: {type(error).__name__}"), 500
            )

    async def _handled(self, scope: Scope, receive: Receive) -> Reply:
        received = scope.get(RECEIVED) or monotonic_ns()
        headers = dict(scope["headers"])
        path = scope["path"]
        if self.keys and path not in OPEN_PATHS:
            self.keys.check(headers)
        route, names = self.router.find(scope["method"], path)
        return await route.handler(HttpRequest(scope, headers, receive, received, names))


async def _without_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Start and stop nothing: the server of the application also owns the service."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


class _Server(uvicorn.Server):
    """This uvicorn server leaves signals to the owner of the process, and tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class RunningHttp:
    """A running HTTP server answers on `host` and `port` until it is stopped."""

    def __init__(
        self,
        server: _Server,
        task: asyncio.Task[None],
        host: str,
        port: int,
        protocol: type[BoundedProtocol],
        network: NativeNetwork | None = None,
    ) -> None:
        self._server = server
        self._task = task
        self._protocol = protocol
        self.host = host
        self.port = port
        self.network = network

    def always_long(self) -> dict[str, str]:
        """Return what always goes the long way, with the reason: some models, or `all models`."""
        if self.network is not None:
            return self.network.always_long()
        return {"all models": self._protocol.long_way} if self._protocol.long_way else {}

    def connections(self) -> int:
        """Return how many are open now."""
        return len(self._server.server_state.connections)

    async def stop(self, grace: float) -> None:
        """Take no more connections; requests under way get *grace* seconds to be answered."""
        self._server.config.timeout_graceful_shutdown = grace  # type: ignore[assignment]
        self._server.should_exit = True
        if self.network is not None:
            self.network.drain()
        await self._task
        if self.network is not None:
            await self.network.stop()


async def serve_http(
    service: Service,
    address: Address | None = None,
    limits: HttpLimits | None = None,
    security: Security | None = None,
    native_front: NativeFront | None = None,
    long_way: str = "",
) -> RunningHttp:
    """Serve HTTP; return once it listens. With a *native_front* network threads serve the connections.

    Without one, *long_way* says why all calls go that way.
    """
    address = address or Address()
    limits = limits or HttpLimits()
    security = security or Security()
    front = HttpFront(service, limits, security)
    if native_front is not None:
        protocol = native_protocol(limits, service.client_errors)
        return await _serve_natively(front, native_front, address, limits, security, protocol)
    bounded = bounded_protocol(limits, long_way, service.client_errors)
    config = _config(front, bounded, limits, security)
    listener = listener_at(address)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    host, port = listener.getsockname()[:2]
    await _until_listening(server, task)
    return RunningHttp(server, task, host, port, bounded)


async def _serve_natively(
    front: HttpFront,
    native_front: NativeFront,
    address: Address,
    limits: HttpLimits,
    security: Security,
    protocol: type[NativeProtocol],
) -> RunningHttp:
    """Serve with uvicorn behind the native network: it has no socket of its own."""
    server = _Server(_config(front, protocol, limits, security))
    listeners = listeners_at(address, native_front.threads)
    host, port = listeners[0].getsockname()[:2]
    descriptors = [listener.fileno() for listener in listeners]
    network = NativeNetwork(extension("_front"), native_front, descriptors, limits, security.keys)
    for listener in listeners:
        listener.close()  # the network has descriptors of its own
    server.server_state.connections = network.connections
    task = asyncio.create_task(server.serve(sockets=[]), name="http")
    await _until_listening(server, task)

    def new_protocol() -> NativeProtocol:
        return protocol(server.config, server.server_state, server.lifespan.state)

    network.start(new_protocol)
    return RunningHttp(server, task, host, port, protocol, network)


def _config(
    app: Any, protocol: type[BoundedProtocol], limits: HttpLimits, security: Security
) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=limits.keep_alive_seconds,
        ssl_certfile=security.certificate,
        ssl_keyfile=security.private_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        files = f"{security.certificate} and {security.private_key}"  # in full: a long value would be cut
        expected = f"PEM files that match, {files} do not: {error}"
        raise InputError("certificate and private key", None, expected) from None
    return config


async def _until_listening(server: _Server, task: asyncio.Task[None]) -> None:
    listening = asyncio.create_task(server.listening.wait())
    await asyncio.wait({listening, task}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        listening.cancel()
        await task
