"""The HTTP server serves the HTTP front, an ASGI application over a Service, with uvicorn.

It does so inside an event loop that is already running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import uvicorn

from astrarium.core.errors import InputError
from astrarium.core.optional import extension
from astrarium.server.contract import NativeFront, Service
from astrarium.server.http.front import HttpFront
from astrarium.server.http.network import NativeNetwork, NativeProtocol, native_protocol
from astrarium.server.http.protocol import BoundedProtocol, bounded_protocol
from astrarium.server.protocol.listeners import listener_at, listeners_at
from astrarium.server.settings import Address, HttpLimits, Security

if TYPE_CHECKING:
    from astrarium._front import Regions

log = logging.getLogger(__name__)


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
    regions: Regions | None = None,
) -> RunningHttp:
    """Serve HTTP; return once it listens. With a *native_front* network threads serve the connections.

    Without one, *long_way* says why all calls go that way.
    """
    address = address or Address()
    limits = limits or HttpLimits()
    security = security or Security()
    front = HttpFront(service, limits, security, regions)
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
