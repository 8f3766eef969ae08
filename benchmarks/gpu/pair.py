"""Clients in processes of their own, which are measured alone and together in windows that coincide.

    with running([Spec("serve", "resnet50", 4), Spec("train", "bert_base", 8)]) as (server, trainer):
        alone = window({server: "busy=0.25"}, seconds=2)[server]
        both = window({server: "busy=0.25", trainer: "lead=0.1 tail=0.1"}, seconds=2)

Nothing here waits for ever: a client that does not answer in time is an error with the end of its log in it,
and on the way out all clients are ended, each by the id of its own process group.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

PROGRAM = Path(__file__).resolve().parent / "clients.py"
START_S = 240.0  # nine clients at once read torch from a cold disk
ANSWER_S = 60.0  # beyond twice the window: queues that drain, a calibration
LEAVE_S = 5.0  # between being asked to quit, told to, and made to
HEAD_START_NS = 60_000_000  # for the orders to be read before the window begins


class ClientFailed(RuntimeError):
    """A client did not do what it was asked to; the message says which, what, and what it last wrote."""


@dataclass(frozen=True)
class Spec:
    """A client that can be started: its program, its model, and where it stands."""

    kind: str
    model: str
    batch: int
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, compare=False)
    prefix: tuple[str, ...] = ()  # a command that runs the program, such as `astrarium gate run ... --`

    @property
    def name(self) -> str:
        return f"{self.model} b{self.batch}"

    def command(self) -> list[str]:
        program = [sys.executable, str(PROGRAM), self.kind, self.model, "--batch", str(self.batch)]
        return [*self.prefix, *program, *self.options]


class Client:
    """One running program, its orders and its answers."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec = spec
        self._log = folder / f"{time.monotonic_ns()}-{spec.kind}-{spec.model}.log"
        self.facts: dict[str, Any] = {}
        self._answers: Queue[str] = Queue()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                spec.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **spec.environment},
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def ready(self, patience_s: float = START_S) -> dict[str, Any]:
        """What the client says of itself once it is warm."""
        word, _, facts = self._line(patience_s, "get ready").partition(" ")
        if word != "ready":
            raise self._failed(f"said {word!r} where 'ready' was expected")
        self.facts = json.loads(facts)
        return self.facts

    def order(self, line: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed(f"could not be told {line!r}") from None

    def outcome(self, patience_s: float = ANSWER_S) -> dict[str, Any]:
        found = json.loads(self._line(patience_s, "answer"))
        if "error" in found:
            raise self._failed(f"refused: {found['error']}")
        return found

    def leave(self) -> None:
        with suppress(ClientFailed, OSError):
            self.order("quit")

    def end(self) -> None:
        """It was asked to leave; it is told, then made to. Its group is its own: nobody else is in it."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE_S)
                break

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._answers.put(line.strip())
        self._answers.put("")  # no more will come

    def _line(self, patience_s: float, what: str) -> str:
        try:
            line = self._answers.get(timeout=patience_s)
        except Empty:
            raise self._failed(f"did not {what} within {patience_s:g} s") from None
        if not line:
            self._answers.put("")
            raise self._failed(f"ended before it could {what}")
        return line

    def _failed(self, what: str) -> ClientFailed:
        tail = self._log.read_text(encoding="utf-8", errors="replace")[-1500:]
        return ClientFailed(f"{self.spec.kind} {self.spec.name} (process {self._process.pid}) {what}\n{tail}")


@contextmanager
def running(specs: Sequence[Spec], patience_s: float = START_S) -> Iterator[list[Client]]:
    """All of them started at once and warm; one that awaits an order takes nothing of the GPU but memory."""
    clients: list[Client] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            clients += [Client(spec, Path(folder)) for spec in specs]
            until = time.monotonic() + patience_s
            for client in clients:
                client.ready(max(0.1, until - time.monotonic()))
            yield clients
        finally:
            for client in clients:
                client.leave()
            for client in clients:
                client.end()


def window(orders: Mapping[Client, str], seconds: float, lead_s: float = 0.0) -> dict[Client, dict[str, Any]]:
    """All these clients at work in the same seconds; what each of them says of it."""
    at = time.monotonic_ns() + HEAD_START_NS + int(lead_s * 1e9)
    for client, words in orders.items():
        client.order(f"go {seconds} at={at} {words}")
    return {client: client.outcome(2 * seconds + ANSWER_S) for client in orders}
