"""A process in reserve prepares to be a worker of any GPU, and waits to be given its place.

It imports what the served models need, and holds their weights in main memory, but uses no GPU. It prepares
in a thread of low priority: only that thread is slow, the process is an ordinary worker afterwards. (A whole
process could not become faster again: the system allows that to nobody but root.)

When it is given a place, it leaves an heir: a copy of itself (a fork, whose memory costs nothing as long as
nobody writes) that is in reserve from then on, and as well prepared. So workers may die one after the other.
That is possible since no thread but the main one is left, and nothing has touched a GPU.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from socket import recv_fds, socket
from threading import Thread
from time import monotonic, sleep
from typing import Any, TypeAlias

import msgspec

from astrarium.serving.live.backends import backends
from astrarium.serving.live.backends.contract import ForgetfulFactory, Place, PreparingFactory
from astrarium.serving.live.messages import LARGEST_MESSAGE, Message, encode, files_from

_PR_SET_NAME = 15
_PR_SET_PDEATHSIG = 1
_ADOPTED_WITHIN = 5.0  # seconds
_LOWEST = 19  # priority
_SCORE = Path("/proc/self/oom_score_adj")
_FIRST_VICTIM = "1000"  # of a machine that runs out of memory: nobody depends on a process in reserve
RESERVE_NAME = "astra-reserve"


class PrepareModel(Message, frozen=True):
    """Import what a model needs. With *code*, users' code is run as well, as far as it needs no GPU."""

    files: dict[str, Any]
    code: bool


class SayWhenReady(Message, frozen=True):
    """Say `Ready` once everything that was ordered before is done."""


class TakePlace(Message, frozen=True):
    """Become the worker of a GPU; only a process that is ready is told so.

    A socket comes with this order: it is the heir's.
    """

    gpu: int
    kind: str
    device: str


class Ready(Message, frozen=True):
    """The process can become a worker; it cannot where there is a *problem*."""

    pid: int
    problem: str = ""


ReserveOrder: TypeAlias = PrepareModel | SayWhenReady | TakePlace
_decode = msgspec.msgpack.Decoder(ReserveOrder).decode
_Orders: TypeAlias = SimpleQueue[PrepareModel | SayWhenReady]
_prepared: set[str] = set()  # backends that may hold something
_UNUSED_AFTER = 10.0  # seconds: a new worker is told at once what to load


def place_given(connection: socket) -> Place:
    """Prepare as told over *connection*, and return the place that was given in the end."""
    name_process(RESERVE_NAME)
    score = _victim_first()
    orders: _Orders = SimpleQueue()
    preparing = Thread(target=_prepare, args=(connection, orders), daemon=True)
    preparing.start()
    while True:
        packet, sockets, *_ = recv_fds(connection, LARGEST_MESSAGE, 1)
        match _decode(packet) if packet else None:
            case None:
                raise SystemExit  # the frontend is gone
            case TakePlace(gpu, kind, device):
                preparing.join()  # it has said that we are ready
                if not _left_heir(connection, sockets):
                    _victim_as_before(score)
                    return Place(gpu, kind, device)
            case order:
                orders.put(order)


def _left_heir(connection: socket, sockets: Sequence[int]) -> bool:
    """Fork a process that is in reserve from now on; return True in that one, False in the one that forks.

    The child's child is the heir: the frontend adopts it as soon as the child has ended, and alone hears how
    it ends. *connection* leads to the heir's own socket then.
    """
    if not sockets:
        return False
    frontend = os.getppid()
    if child := os.fork():
        os.waitpid(child, 0)
        os.close(sockets[0])
        return False
    if os.fork():
        os._exit(0)
    os.dup2(sockets[0], connection.fileno())
    os.close(sockets[0])
    _be_adopted(frontend)
    connection.send(encode(Ready(os.getpid())))
    return True


def _be_adopted(frontend: int) -> None:
    """Wait until the frontend is our parent, and die with it from then on."""
    os.setsid()
    until = monotonic() + _ADOPTED_WITHIN
    while os.getppid() != frontend:
        if monotonic() > until:
            os._exit(1)  # somebody else has adopted us: nobody would hear how we end
        sleep(0.001)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != frontend:
        os._exit(1)


def name_process(name: str) -> None:
    """Give the process a name of at most 15 characters, as `top` and `ps -e` show it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _prepare(connection: socket, orders: _Orders) -> None:
    os.nice(_LOWEST)  # of this thread alone
    backends.names()  # imports those of ours
    while isinstance(order := orders.get(), PrepareModel):
        with suppress(Exception):  # what is wrong with a model is told when a worker loads it
            _prepare_model(order)
    connection.send(encode(Ready(os.getpid(), _problem())))


def _prepare_model(order: PrepareModel) -> None:
    files = files_from(order.files)
    factory = backends.get(files.backend)
    if isinstance(factory, PreparingFactory):
        _prepared.add(files.backend)
        factory.prepare(files, order.code)


def forget_unused(loading: Callable[[], bool]) -> None:
    """Free what was prepared for models that this worker was not told to load, a while after the last load.

    It is called by the thread of every load; where there is another load after that, its thread does it.
    """
    if _prepared:
        sleep(_UNUSED_AFTER)
    while _prepared and not loading():
        factory = backends.get(_prepared.pop())
        if isinstance(factory, ForgetfulFactory):
            factory.forget()


def _problem() -> str:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "a model's code used the GPU while it made the model, before there was a place for it"
    return ""


def _victim_first() -> str:
    """Let the system end this process first when memory runs out; return what it thought before."""
    with suppress(OSError):
        before = _SCORE.read_text()
        _SCORE.write_text(_FIRST_VICTIM)
        return before
    return ""


def _victim_as_before(score: str) -> None:
    with suppress(OSError):
        _SCORE.write_text(score)
