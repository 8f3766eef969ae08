"""The members of gangs find each other in one store, which lives as long as the backend."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from astrarium.core.errors import AstrariumError
from astrarium.tuning.live.slots.fork_server import ForkServer
from astrarium.tuning.live.slots.messages import RendezvousSetup

Address = tuple[str, int]
STORE_PRELOAD = ("torch.distributed",)
LOADING = 120.0  # seconds until the store must be there: PyTorch is loaded meanwhile


class Rendezvous:
    """The rendezvous keeps the store and knows its address. The store listens only on the address of this
    machine that *host* returns. Gangs meet there under names of their own. Without a *fork_server* that has
    PyTorch anyway, the rendezvous starts its own."""

    def __init__(self, host: Callable[[], str], fork_server: ForkServer | None = None) -> None:
        self._host = host
        self._fork_server = fork_server
        self._own: ForkServer | None = None
        self._store_process: Connection | None = None  # of the process that has the store
        self._address: Address | None = None

    def begin(self) -> None:
        """Begin to make the store, without waiting for it."""
        if self._store_process is None:
            name = self._host()
            fork_server = self._fork_server or self._own or ForkServer(os.environ, STORE_PRELOAD)
            self._own = None if self._fork_server is fork_server else fork_server
            self._store_process = fork_server.fork(RendezvousSetup(name))
            self._address = None

    def __call__(self) -> Address:
        """Return the address of the store; a store that died is replaced."""
        if self._address is not None and self._store_process is not None and self._store_process.poll():
            self._dismiss()  # after its address the store_process says nothing but its end
        self.begin()
        if self._address is None:
            self._address = self._host(), self._port()
        return self._address

    def close(self) -> None:
        self._dismiss()
        if self._own is not None:
            self._own.close()
            self._own = None

    def _port(self) -> int:
        assert self._store_process is not None
        with suppress(EOFError, OSError):
            answer = self._store_process.recv() if self._store_process.poll(LOADING) else "it took too long"
            if isinstance(answer, int):
                return answer
        self._dismiss()
        raise AstrariumError("no store came up in which the processes of a trial could meet")

    def _dismiss(self) -> None:
        store_process = self._store_process
        self._store_process = None
        if store_process is not None:
            store_process.close()


def keep_store(pipe: Connection, host: str) -> None:
    """Keep the store in this process until the backend closes the pipe."""
    store = _served(host)
    pipe.send(int(store.port))
    with suppress(EOFError, OSError):
        pipe.recv()


def _served(host: str) -> Any:
    from torch._C._distributed_c10d import TCPStore

    listening = socket.socket()
    listening.bind((host, 0))
    listening.listen()
    port = listening.getsockname()[1]
    handle = listening.detach()  # the store closes it
    return TCPStore(host, port, None, True, wait_for_workers=False, master_listen_fd=handle)
