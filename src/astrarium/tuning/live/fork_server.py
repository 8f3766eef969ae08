"""A fork server is a process that has loaded what slots need, and forks a slot whenever it is asked to.

So a slot begins in milliseconds, and never runs the user's script, which need not be written for that. All
slots of a fork server have its environment. The fork server ends with its backend, whose end of the socket is
closed then, also while it still loads, and its slots end with it. A backend that was killed could not tidy
up: its fork server does.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import msgspec

from astrarium.core.errors import AstrariumError
from astrarium.tuning.live.messages import Gone, RendezvousSetup, SlotSetup

# torch._dynamo takes seconds to import; the first optimizer would import it.
PRELOAD = ("torch", "torch.distributed", "torch._dynamo")
LOOKING = 100  # milliseconds between checks that the backend lives, while modules load
LEAVING = 2.0  # seconds for slots to find out themselves that the backend is gone
_PDEATHSIG = 1  # of prctl: the signal that comes when the parent has died
_MOST = 1 << 16  # bytes of a setup
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {module} import serve; serve(sys.argv)"


class ForkServer:
    """The object starts a fork server and asks it for processes. *environment* is all that its processes
    have. *litter* is a folder to remove when the backend is gone."""

    def __init__(
        self, environment: Mapping[str, str], preload: Sequence[str] = PRELOAD, litter: str = ""
    ) -> None:
        self._environment = dict(environment)
        self._told = [litter, *preload]
        self._begin()

    def _begin(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        searched = [path or os.getcwd() for path in sys.path]
        boot = _BOOT.format(module=__name__)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", boot, json.dumps(searched), str(theirs.fileno()), *self._told],
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


def serve(arguments: Sequence[str]) -> None:
    """Run the fork server itself."""
    _, _, handle, litter, *preload = arguments
    sys.argv = [sys.argv[0]]
    control = socket.socket(fileno=int(handle))
    with _while_the_backend_lives(control, litter):
        for name in preload:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is loaded stays: slots need not look through it again
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for slots: the backend hears of their ends
    while True:
        message, handles, _, _ = socket.recv_fds(control, _MOST, 1)
        if not message:
            _throw_away(litter)
            return
        if os.fork() == 0:
            control.close()
            _become(message, handles[0])
        os.close(handles[0])


@contextmanager
def _while_the_backend_lives(control: socket.socket, litter: str) -> Iterator[None]:
    """End this process if the backend goes while modules are loaded, which may take a minute."""
    loaded = Event()
    watch = Thread(target=_end_with_backend, args=(control, litter, loaded))
    watch.start()
    try:
        yield
    finally:
        loaded.set()
        watch.join()  # none may be there when slots are forked


def _end_with_backend(control: socket.socket, litter: str, loaded: Event) -> None:
    poll = select.poll()
    poll.register(control, 0)  # the other end is closed: that is always told
    while not loaded.is_set():
        if poll.poll(LOOKING):
            _throw_away(litter)
            os._exit(0)


def _throw_away(litter: str) -> None:
    """Remove the folder once nearly all who write there are gone: the rest end with this process."""
    until = monotonic() + LEAVING
    with suppress(ChildProcessError):  # there are none any more
        while litter and monotonic() < until:
            os.waitpid(-1, os.WNOHANG)
            sleep(0.01)
    if litter:
        shutil.rmtree(litter, ignore_errors=True)


def _become(message: bytes, handle: int) -> None:
    """Take the role on. Why that failed is told to the backend, and in full where trainings print."""
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
    from astrarium.tuning.live.slot import Slot

    if isinstance(role, RendezvousSetup):
        _keep_store(pipe, role.host)
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


def _keep_store(pipe: Connection, host: str) -> None:
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


# The members of gangs find each other in one store, which lives as long as the backend.


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
        self._keeper: Connection | None = None  # of the process that has the store
        self._address: Address | None = None

    def begin(self) -> None:
        """Begin to make the store, without waiting for it."""
        if self._keeper is None:
            name = self._host()
            fork_server = self._fork_server or self._own or ForkServer(os.environ, STORE_PRELOAD)
            self._own = None if self._fork_server is fork_server else fork_server
            self._keeper = fork_server.fork(RendezvousSetup(name))
            self._address = None

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
        keeper = self._keeper
        self._keeper = None
        if keeper is not None:
            keeper.close()
