"""The gRPC server serves the gRPC front, inside an event loop that is already running.

The native network reads plain calls in threads of its own; others go the long way, through here. A call that
goes the long way keeps its stream: its thread passes on the messages, the methods answer that grpc.aio would
call, and what they say goes back to the thread. Without the native network, grpc.aio serves all calls.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import grpc

from astrarium.core.errors import InputError
from astrarium.core.optional import extension
from astrarium.server.contract import NativeFront, Service
from astrarium.server.grpc.front import GrpcFront
from astrarium.server.grpc.network import NativeGrpc
from astrarium.server.protocol.keys import Keys
from astrarium.server.settings import Address, HttpLimits, Security

if TYPE_CHECKING:
    from astrarium._front import Regions

log = logging.getLogger(__name__)


_ENVELOPE = 64 * 1024  # bytes of a message beside its tensors
_NO_LIMIT = -1
# at once, in all and on a connection, as in grpc_thread.h
_MOST_CALLS = 1 << 14
_MOST_STREAMS = 1024


class RunningGrpc:
    """A running gRPC server answers on `host` and `port` until it is stopped."""

    def __init__(self, server: Any, host: str, port: int) -> None:
        self._server = server
        self.host = host
        self.port = port

    async def stop(self, grace: float) -> None:
        """Take no more calls; those under way get *grace* seconds to be answered."""
        await self._server.stop(grace)


async def serve_grpc(
    service: Service,
    address: Address | None = None,
    limits: HttpLimits | None = None,
    security: Security | None = None,
    native_front: NativeFront | None = None,
    regions: Regions | None = None,
) -> RunningGrpc | NativeGrpc:
    """Serve gRPC; return once it listens. With a *native_front* network threads serve the connections."""
    address = address or Address()
    limits = limits or HttpLimits()
    security = security or Security()
    front = GrpcFront(service, limits, Keys(security.keys), regions)
    if native_front is not None:
        settings = native_front, front, address, limits, security, limits.body_bytes + _ENVELOPE
        return NativeGrpc(extension("_front"), *settings)
    server = grpc.aio.server(options=_options(limits), maximum_concurrent_rpcs=_MOST_CALLS)
    server.add_generic_rpc_handlers((front.handler(),))
    port = _bound(server, address, security)
    await server.start()
    return RunningGrpc(server, address.host, port)


def _options(limits: HttpLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.body_bytes + _ENVELOPE),
        ("grpc.max_send_message_length", _NO_LIMIT),
        ("grpc.max_concurrent_streams", _MOST_STREAMS),
        ("grpc.max_metadata_size", limits.head_bytes),
        ("grpc.absolute_max_metadata_size", limits.head_bytes),
        ("grpc.so_reuseport", 0),  # a port that is taken is an error, not shared
    ]


def _bound(server: Any, address: Address, security: Security) -> int:
    host = f"[{address.host}]" if ":" in address.host else address.host
    where = f"{host}:{address.port}"
    credentials = _credentials(security)
    try:
        if credentials is None:
            port = server.add_insecure_port(where)
        else:
            port = server.add_secure_port(where, credentials)
    except RuntimeError as error:
        raise InputError("address", where, f"one that is free here: {error}") from None
    return int(port)


def _credentials(security: Security) -> Any:
    if security.certificate is None:
        return None
    key = security.private_key or security.certificate
    try:
        pair = (key.read_bytes(), security.certificate.read_bytes())
    except OSError as error:
        files = f"{security.certificate}, {security.private_key}"
        raise InputError("certificate and private key", files, f"PEM files: {error}") from None
    return grpc.ssl_server_credentials([pair])
