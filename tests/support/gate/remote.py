"""The test's end of program.py: programs that run beside each other and do what they are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

from astrarium._gate import Board
from tests.support.paths import ROOT

FOREVER = 3_600_000_000_000  # ns, an hour
PATIENCE = 30.0  # seconds; only ever waited for by a test that fails


class Program:
    """Methods are those of gpu.Gpu, in the program's main thread; see `on` and `later`."""

    def __init__(self, library: str, environment: dict[str, str] | None = None, start: bool = True) -> None:
        command = [sys.executable, "-m", "tests.support.gate.program", library]
        clean = {name: text for name, text in os.environ.items() if not name.startswith("ASTRARIUM_GATE")}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, **(environment or {})},
            cwd=ROOT,
        )
        self._numbers = count()
        self._pending = dict[int, Future[Any]]()
        self._lock = threading.Lock()
        self.errors = list[str]()
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._hear, self._listen)]
        for reader in self._readers:
            reader.start()
        if start:
            self.start()

    def later(self, do: str, *args: Any, thread: str = "main", **options: Any) -> Future[Any]:
        number = next(self._numbers)
        answer = Future[Any]()
        order = {"id": number, "thread": thread, "do": do, "args": args, "options": options}
        assert self.process.stdin is not None
        with self._lock:
            self._pending[number] = answer
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        return answer

    def on(self, thread: str, do: str, *args: Any, **options: Any) -> Any:
        return self.later(do, *args, thread=thread, **options).result(PATIENCE)

    def __getattr__(self, do: str) -> Callable[..., Any]:
        if do.startswith("_"):
            raise AttributeError(do)
        return lambda *args, **options: self.on("main", do, *args, **options)

    def leave(self) -> str:
        """It ends in an orderly way; what it said on standard error."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0
        return self.said()

    def kill(self, reap: bool = True) -> None:
        self.process.kill()
        if reap:
            self.process.wait(PATIENCE)

    def said(self) -> str:
        for reader in self._readers:
            reader.join(PATIENCE)
        return "".join(self.errors)

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answer = json.loads(line)
            pending = self._pending.pop(answer["id"])
            if "error" in answer:
                pending.set_exception(RuntimeError(answer["error"]))
            else:
                pending.set_result(answer["result"])
        for number in list(self._pending):
            self._pending.pop(number).set_exception(RuntimeError(f"it is gone: {''.join(self.errors)}"))

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)


class Gate:
    """Programs that share one board, through the preloaded library."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library = library
        self.folder = folder
        self.board_path = folder / "board"
        self.programs: list[Program] = []

    def open(self, policy: str, **settings: float) -> Board:
        """The board, before anybody else; what runs is believed in for ever, unless the test says else."""
        self.board = Board(str(self.board_path), policy, 132)
        self.board.set(**{"lease": FOREVER, **settings})
        return self.board

    def program(
        self, kind: str | None, name: str = "", start: bool = True, board: bool = True, **environment: str
    ) -> Program:
        """*kind* is also its name where it has no other; variables are given without ASTRARIUM_GATE_."""
        settings = {
            "BOARD": str(self.board_path) if board else None,
            "CLASS": kind,
            "NAME": name or kind,
            **environment,
        }
        variables = {f"ASTRARIUM_GATE_{variable}": text for variable, text in settings.items() if text}
        self.programs.append(Program("libcuda.so.1", {**variables, "LD_PRELOAD": str(self.library)}, start))
        return self.programs[-1]

    def pair(self) -> tuple[Program, Program]:
        """A latency client and a best-effort one, whose work ends when the test says so."""
        programs = self.program("latency"), self.program("best-effort")
        for program in programs:
            program.stub("automatic", 0)
        return programs

    def profile(self, **durations: int) -> str:
        """A file that knows these kernels, in their default shape."""
        rows = [
            f"kernel\t{index}\t{name}\t1,1,1\t32,1,1\t0\t{ns}\t{ns}\t1\t1\tcompute"
            for index, (name, ns) in enumerate(durations.items())
        ]
        path = self.folder / "kernels.profile"
        path.write_text("\n".join(["astrarium-kernels 1", "device\tStub GPU\t132", *rows, ""]))
        return str(path)

    def clients(self) -> dict[str, dict[str, Any]]:
        return {client["name"]: client for client in self.board.snapshot()["clients"]}

    def counts(self, name: str) -> dict[str, Any]:
        counts: dict[str, Any] = self.clients()[name]["counts"]
        return counts

    def await_held(self, name: str) -> str:
        """Until a launch of this client is held; why it is."""
        reason = until(lambda: name in (known := self.clients()) and known[name]["waiting"])
        return str(reason)

    def close(self) -> None:
        for program in self.programs:
            program.kill()


def until(condition: Callable[[], Any]) -> Any:
    """Waits for what will come; the time-out is for what does not."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.0005)
    return value
