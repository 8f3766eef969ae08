"""A process that has loaded what slots need, and forks one whenever it is asked to.

A slot begins in milliseconds so, and never in the person's script, which need not be written for that. All
slots of a nursery have its environment. It ends with its crew: the other end of its socket is closed then,
and its slots end with it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

import msgspec

from astrarium.engines.tuning_orders import Setup

# The last one takes seconds; the first optimizer would load it.
PRELOAD = ("torch", "torch.distributed", "torch._dynamo")
PATIENCE = 5.0  # seconds for it to end by itself
_PDEATHSIG = 1  # of prctl: the signal that comes when the parent has died
_MOST = 1 << 16  # bytes of a setup
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {module} import serve; serve(sys.argv)"


class Nursery:
    """The crew's end. *environment* is all that its processes have."""

    def __init__(self, environment: Mapping[str, str], preload: Sequence[str] = PRELOAD) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        searched = [path or os.getcwd() for path in sys.path]
        boot = _BOOT.format(module=__name__)
        self._process = subprocess.Popen(
            [sys.executable, "-c", boot, json.dumps(searched), str(theirs.fileno()), *preload],
            pass_fds=[theirs.fileno()],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt at the keyboard is the crew's business
        )
        theirs.close()

    def fork(self, setup: Setup) -> Connection:
        """A slot, through which one speaks with it: its first word is Ready."""
        ours, theirs = socket.socketpair()
        socket.send_fds(self._control, [msgspec.json.encode(setup)], [theirs.fileno()])
        theirs.close()
        return Connection(ours.detach())

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:  # it may still be loading
            self._process.kill()
            self._process.wait()


def serve(arguments: Sequence[str]) -> None:
    """The nursery itself."""
    _, _, handle, *preload = arguments
    sys.argv = [sys.argv[0]]
    control = socket.socket(fileno=int(handle))
    for name in preload:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is loaded stays: slots need not look through it again
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for slots: the crew hears of their ends
    while True:
        message, handles, _, _ = socket.recv_fds(control, _MOST, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            _become_slot(message, handles[0])
        os.close(handles[0])


def _become_slot(message: bytes, handle: int) -> None:
    from astrarium.engines.tuning_slot import Slot

    try:
        _end_with_parent()
        os.setpgid(0, 0)  # what it starts itself ends with it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        setup = msgspec.json.decode(message, type=Setup)
        _write_to(setup.log)
        Slot(Connection(handle), setup).serve()
    finally:
        os._exit(0)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def _write_to(log: str) -> None:
    if log:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
