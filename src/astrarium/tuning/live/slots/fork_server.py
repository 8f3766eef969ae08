"""A fork server is a process that has loaded what slots need, and forks a slot whenever it is asked to.

So a slot begins in milliseconds, and never runs the user's script, which need not be written for that. All
slots of a fork server have its environment. The fork server ends with its backend, whose end of the socket is
closed then, also while it still loads, and its slots end with it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec

from astrarium.tuning.live.slots.messages import RendezvousSetup, SlotSetup

# torch._dynamo takes seconds to import; the first optimizer would import it.
PRELOAD = ("torch", "torch.distributed", "torch._dynamo")
_SERVER = "astrarium.tuning.live.slots.forking"  # the module that runs in the process
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {module} import serve; serve(sys.argv)"


class ForkServer:
    """The backend's side of a fork server, which it starts and asks for processes. *environment* is all that
    these have. *temporary_folder* is removed by the fork server when the backend is gone."""

    def __init__(
        self, environment: Mapping[str, str], preload: Sequence[str] = PRELOAD, temporary_folder: str = ""
    ) -> None:
        self._environment = dict(environment)
        self._arguments = [temporary_folder, *preload]
        self._begin()

    def _begin(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        searched = [path or os.getcwd() for path in sys.path]
        boot = _BOOT.format(module=_SERVER)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", boot, json.dumps(searched), str(theirs.fileno()), *self._arguments],
                pass_fds=[theirs.fileno()],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt at the keyboard is the backend's business
            )

    def fork(self, role: SlotSetup | RendezvousSetup) -> Connection:
        """Fork a process with that role, and return a connection to it: the first message of a slot is Ready.
        A fork server that was killed is replaced; where the new one dies too, the connection ends."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._ask_for(role, theirs)
            except OSError:
                self.close()
                self._begin()
                with suppress(OSError):
                    self._ask_for(role, theirs)
        return Connection(ours.detach())

    def _ask_for(self, role: SlotSetup | RendezvousSetup, theirs: socket.socket) -> None:
        socket.send_fds(self._control, [msgspec.json.encode(role)], [theirs.fileno()])

    def close(self) -> None:
        """Kill the fork server at once: it has nothing to save, and its slots end with it."""
        self._control.close()
        self._process.kill()
        self._process.wait()
