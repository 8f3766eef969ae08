"""A process in reserve prepares to be a worker of any GPU, and waits to be given its place.

It imports what the served models need, and holds their weights in main memory, but uses no GPU. It prepares
in a thread of low priority: only that thread is slow, the process is an ordinary worker afterwards. (A whole
process could not become faster again: the system allows that to nobody but root.)
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from socket import socket
from threading import Thread
from time import sleep
from typing import Any, TypeAlias

import msgspec

from astrarium.serving.live.backends import backends
from astrarium.serving.live.backends.contract import ModelFiles, Place
from astrarium.serving.live.messages import LARGEST_MESSAGE, Message, encode

_PR_SET_NAME = 15
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
    """Become the worker of a GPU; only a process that is ready is told so."""

    gpu: int
    kind: str
    device: str


class Ready(Message, frozen=True):
    """The process can become a worker; it cannot where there is a *problem*."""

    problem: str = ""


ReserveOrder: TypeAlias = PrepareModel | SayWhenReady | TakePlace
_decode = msgspec.msgpack.Decoder(ReserveOrder).decode
_Orders: TypeAlias = SimpleQueue[PrepareModel | SayWhenReady]
_prepared: set[str] = set()  # backends that may hold something
_UNUSED_AFTER = 10.0  # seconds: a new worker is told at once what to load


def place_given(line: socket) -> Place:
    """Prepare as told over *line*, and return the place that was given in the end."""
    name_process(RESERVE_NAME)
    score = _victim_first()
    orders: _Orders = SimpleQueue()
    Thread(target=_prepare, args=(line, orders), daemon=True).start()
    while packet := line.recv(LARGEST_MESSAGE):
        match _decode(packet):
            case TakePlace(gpu, kind, device):
                _victim_as_before(score)
                return Place(gpu, kind, device)
            case order:
                orders.put(order)
    raise SystemExit  # the frontend is gone


def name_process(name: str) -> None:
    """Give the process a name of at most 15 characters, as `top` and `ps -e` show it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _prepare(line: socket, orders: _Orders) -> None:
    os.nice(_LOWEST)  # of this thread alone
    backends.names()  # imports those of ours
    while isinstance(order := orders.get(), PrepareModel):
        with suppress(Exception):  # what is wrong with a model is told when a worker loads it
            _prepare_model(order)
    line.send(encode(Ready(_problem())))


def _prepare_model(order: PrepareModel) -> None:
    files = msgspec.convert(order.files, ModelFiles, dec_hook=lambda kind, value: kind(value))  # of its path
    factory = backends.get(files.backend)
    if hasattr(factory, "prepare"):
        _prepared.add(files.backend)
        factory.prepare(files, order.code)


def forget_unused(loading: Callable[[], bool]) -> None:
    """Free what was prepared for models that this worker was not told to load, a while after the last load.

    It is called by the thread of every load; where there is another load after that, its thread does it.
    """
    if _prepared:
        sleep(_UNUSED_AFTER)
    while _prepared and not loading():
        getattr(backends.get(_prepared.pop()), "forget", lambda: None)()


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
