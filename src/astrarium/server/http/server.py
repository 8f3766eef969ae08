"""The HTTP server serves the HTTP front with uvicorn, inside an event loop that is already running."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator
from typing import Any

import uvicorn

from astrarium.core.errors import InputError, extension
from astrarium.server.contract import Express, Service
from astrarium.server.http.app import HttpFront
from astrarium.server.http.express import ExpressLane, ExpressProtocol, express_protocol
from astrarium.server.http.protocol import BoundedProtocol, bounded_protocol
from astrarium.server.settings import Address, HttpLimits, Security

_BACKLOG = 2048


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
        self, server: _Server, task: asyncio.Task[None], host: str, port: int, protocol: type[BoundedProtocol]
    ) -> None:
        self._server, self._task, self._protocol = server, task, protocol
        self.host, self.port = host, port

    def always_long(self) -> dict[str, str]:
        """Return what always goes the long way, with the reason: some models, or `all models`."""
        if issubclass(self._protocol, ExpressProtocol):
            return self._protocol.lane.always_long()
        return {"all models": self._protocol.long_way} if self._protocol.long_way else {}

    async def stop(self, grace: float) -> None:
        """Take no more connections; requests under way get *grace* seconds to be answered."""
        self._server.config.timeout_graceful_shutdown = grace  # type: ignore[assignment]
        self._server.should_exit = True
        await self._task


async def serve_http(
    service: Service,
    address: Address | None = None,
    limits: HttpLimits | None = None,
    security: Security | None = None,
    express: Express | None = None,
) -> RunningHttp:
    """Serve HTTP; return once it listens. *express* is the short way into the service, where it has one."""
    address, limits, security = address or Address(), limits or HttpLimits(), security or Security()
    front = HttpFront(service, limits, security)
    protocol = _protocol(front, limits, security, express)
    config = _config(front, protocol, limits, security)
    listener = _listener(address)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    host, port = listener.getsockname()[:2]
    await _until_listening(server, task)
    return RunningHttp(server, task, host, port, protocol)


def _protocol(
    front: HttpFront, limits: HttpLimits, security: Security, express: Express | None
) -> type[BoundedProtocol]:
    """Return the connections' protocol; the short way needs the native extension, and no TLS."""
    native = extension("_express")
    if express is None or native is None or security.certificate is not None:
        return bounded_protocol(limits, "no_extension" if native is None else "tls" if express else "")
    return express_protocol(limits, ExpressLane(express, native, front.bodies, front.keys))


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
        limit_concurrency=limits.connections,
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


def _listener(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        where = f"{address.host}:{address.port}"
        raise InputError("address", where, f"one that is free here: {error.strerror}") from None


async def _until_listening(server: _Server, task: asyncio.Task[None]) -> None:
    listening = asyncio.create_task(server.listening.wait())
    await asyncio.wait({listening, task}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        listening.cancel()
        await task
