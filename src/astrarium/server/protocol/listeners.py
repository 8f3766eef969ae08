"""Sockets that the protocols listen on."""

from __future__ import annotations

import socket

from astrarium.core.errors import InputError
from astrarium.server.settings import Address

_BACKLOG = 2048


def listener_at(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        where = f"{address.host}:{address.port}"
        raise InputError("address", where, f"one that is free here: {error.strerror}") from None


def listeners_at(address: Address, count: int) -> list[socket.socket]:
    """Return sockets that share a port, which must be free: nobody else's is joined."""
    first = listener_at(address)
    host, port = first.getsockname()[:2]
    first.close()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET

    def another() -> socket.socket:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=True)

    return [another() for _ in range(count)]
