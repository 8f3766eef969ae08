"""The process of a fork server loads modules, then forks itself for each slot.

A backend that was killed could not remove its temporary folder: its fork server does.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from threading import Event, Thread
from time import monotonic, sleep

import msgspec

from astrarium.tuning.live.slots.messages import Gone, RendezvousSetup, SlotSetup
from astrarium.tuning.live.slots.rendezvous import keep_store

LOOKING = 100  # milliseconds between checks that the backend lives, while modules load
LEAVING = 2.0  # seconds for slots to find out themselves that the backend is gone
_PDEATHSIG = 1  # of prctl: the signal that comes when the parent has died
_MOST = 1 << 16  # bytes of a setup


def serve(arguments: Sequence[str]) -> None:
    """Run the fork server itself."""
    _, _, handle, temporary_folder, *preload = arguments
    sys.argv = [sys.argv[0]]
    control = socket.socket(fileno=int(handle))
    with _while_the_backend_lives(control, temporary_folder):
        for name in preload:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is loaded stays: slots need not look through it again
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for slots: the backend hears of their ends
    while True:
        message, handles, _, _ = socket.recv_fds(control, _MOST, 1)
        if not message:
            _throw_away(temporary_folder)
            return
        if os.fork() == 0:
            control.close()
            _become(message, handles[0])
        os.close(handles[0])


@contextmanager
def _while_the_backend_lives(control: socket.socket, temporary_folder: str) -> Iterator[None]:
    """End this process if the backend goes while modules are loaded, which may take a minute."""
    loaded = Event()
    watch = Thread(target=_end_with_backend, args=(control, temporary_folder, loaded))
    watch.start()
    try:
        yield
    finally:
        loaded.set()
        watch.join()  # none may be there when slots are forked


def _end_with_backend(control: socket.socket, temporary_folder: str, loaded: Event) -> None:
    poll = select.poll()
    poll.register(control, 0)  # that the other end is closed is always reported
    while not loaded.is_set():
        if poll.poll(LOOKING):
            _throw_away(temporary_folder)
            os._exit(0)


def _throw_away(temporary_folder: str) -> None:
    """Remove the folder once nearly all who write there are gone: the rest end with this process."""
    until = monotonic() + LEAVING
    with suppress(ChildProcessError):  # there are none any more
        while temporary_folder and monotonic() < until:
            os.waitpid(-1, os.WNOHANG)
            sleep(0.01)
    if temporary_folder:
        shutil.rmtree(temporary_folder, ignore_errors=True)


def _become(message: bytes, handle: int) -> None:
    """Take the role on. The backend hears why that failed; the whole error goes where trainings print."""
    pipe = Connection(handle)
    try:
        _end_with_parent()
        os.setpgid(0, 0)  # processes that the slot starts end with it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _play(pipe, msgspec.json.decode(message, type=SlotSetup | RendezvousSetup))
    except BaseException as error:
        traceback.print_exc()
        with suppress(OSError):
            pipe.send(Gone("its process ended: " + traceback.format_exception_only(error)[-1].strip()))
    finally:
        sys.stderr.flush()
        os._exit(1)


def _play(pipe: Connection, role: SlotSetup | RendezvousSetup) -> None:
    from astrarium.tuning.live.slots.slot import Slot

    if isinstance(role, RendezvousSetup):
        keep_store(pipe, role.host)
    else:
        _write_to(role.log)
        Slot(pipe, role).serve()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def _write_to(log: str) -> None:
    if log:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
