"""Where the members of gangs find each other: one store for a crew's life.

The store is PyTorch's, which takes seconds to import. So it is kept by a process that a nursery forks:
whoever runs the search need not import it, and can be interrupted at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from astrarium.core.errors import AstrariumError
from astrarium.tuning.live.fork_server import Nursery
from astrarium.tuning.live.messages import Meet

Address = tuple[str, int]
PRELOAD = ("torch.distributed",)
LOADING = 120.0  # seconds until the store must be there: PyTorch is loaded meanwhile


class Meeting:
    """*host* answers on which address of this machine the store listens, and on no other. Gangs meet there
    under names of their own. Without a *nursery* that has PyTorch anyway, the meeting starts its own."""

    def __init__(self, host: Callable[[], str], nursery: Nursery | None = None) -> None:
        self._host, self._nursery = host, nursery
        self._own: Nursery | None = None
        self._keeper: Connection | None = None  # of the process that has the store
        self._address: Address | None = None

    def begin(self) -> None:
        """The store is made from now on; nobody waits for it."""
        if self._keeper is None:
            name = self._host()
            nursery = self._nursery or self._own or Nursery(os.environ, PRELOAD)
            self._own = None if self._nursery is nursery else nursery
            self._keeper, self._address = nursery.fork(Meet(name)), None

    def __call__(self) -> Address:
        """Where the store is; a store that died is replaced."""
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
