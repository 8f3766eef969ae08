"""The members of gangs find each other in one store, which lives as long as the backend.

The store is PyTorch's, which takes seconds to import. So a process that a fork server forks keeps it: the
process that runs the search need not import it, and can be interrupted at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from astrarium.core.errors import AstrariumError
from astrarium.tuning.live.fork_server import ForkServer
from astrarium.tuning.live.messages import RendezvousSetup

Address = tuple[str, int]
PRELOAD = ("torch.distributed",)
LOADING = 120.0  # seconds until the store must be there: PyTorch is loaded meanwhile


class Rendezvous:
    """The rendezvous keeps the store and knows its address. The store listens only on the address of this
    machine that *host* returns. Gangs meet there under names of their own. Without a *fork_server* that has
    PyTorch anyway, the rendezvous starts its own."""

    def __init__(self, host: Callable[[], str], fork_server: ForkServer | None = None) -> None:
        self._host, self._fork_server = host, fork_server
        self._own: ForkServer | None = None
        self._keeper: Connection | None = None  # of the process that has the store
        self._address: Address | None = None

    def begin(self) -> None:
        """Begin to make the store, without waiting for it."""
        if self._keeper is None:
            name = self._host()
            fork_server = self._fork_server or self._own or ForkServer(os.environ, PRELOAD)
            self._own = None if self._fork_server is fork_server else fork_server
            self._keeper, self._address = fork_server.fork(RendezvousSetup(name)), None

    def __call__(self) -> Address:
        """Return the address of the store; a store that died is replaced."""
        if self._address is not None and self._keeper is not None and self._keeper.poll():
            self._dismiss()  # after its address the keeper says nothing but its end
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
        assert self._keeper is not None
        with suppress(EOFError, OSError):
            found = self._keeper.recv() if self._keeper.poll(LOADING) else "it took too long"
            if isinstance(found, int):
                return found
        self._dismiss()
        raise AstrariumError("no store came up in which the processes of a trial could meet")

    def _dismiss(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()
