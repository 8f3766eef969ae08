"""Where the members of gangs find each other: one store for a crew's life."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

Address = tuple[str, int]


class Meeting:
    """*host* answers on which address of this machine it listens, and on no other; it is asked when there is
    the first gang. Gangs meet there under names of their own."""

    def __init__(self, host: Callable[[], str]) -> None:
        self._host, self._name = host, ""
        self._server: Any = None

    def __call__(self) -> Address:
        if self._server is None:
            self._name = self._host()
            self._server = _served(self._name)
        return self._name, int(self._server.port)

    def close(self) -> None:
        self._server = None


def _served(host: str) -> Any:
    from torch._C._distributed_c10d import TCPStore

    listening = socket.socket()
    listening.bind((host, 0))
    listening.listen()
    port = listening.getsockname()[1]
    handle = listening.detach()  # the store closes it
    return TCPStore(host, port, None, True, wait_for_workers=False, master_listen_fd=handle)
