"""`astrarium serve` as a process of its own, for tests that talk to it like strangers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 60.0  # seconds; generous, since nothing is measured


@dataclass
class Server:
    process: subprocess.Popen[str]
    http: str  # host:port
    grpc: str
    said: str

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=PATIENCE) as answer:
            body: bytes = answer.read()
        return body.decode()

    def post(self, path: str, body: bytes) -> str:
        with urllib.request.urlopen(f"http://{self.http}{path}", body, PATIENCE) as answer:
            answered: bytes = answer.read()
        return answered.decode()

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all series of that name that carry these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in self.get("/metrics").splitlines() if re.match(rf"{name}[ {{]", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(pair in line for pair in wanted))

    def workers(self) -> list[int]:
        """Process ids of the worker processes, without the one in reserve."""
        return [child for child in self._children() if not _is_reserve(child)]

    def reserve(self) -> list[int]:
        """Process ids of the processes in reserve: one at most."""
        return [child for child in self._children() if _is_reserve(child)]

    def _children(self) -> list[int]:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [child for child in map(int, children) if b"live.worker" in _command(child)]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def serving(scenario: Path, *options: str) -> Iterator[Server]:
    """Up and ready; killed at the end whatever happens."""
    command = [sys.executable, "-m", "astrarium", "serve", str(scenario), "--http", "0", "--grpc", "0"]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
    )
    try:
        text = _until_it_says(process, "curl")
        http = re.search(r"https?://([\d.]+:\d+)", text)
        grpc = re.search(r"gRPC +([\d.]+:\d+)", text)
        assert http is not None
        assert grpc is not None
        yield Server(process, http[1], grpc[1], text)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def eventually(holds: object, what: str) -> None:
    """Wait for something that will come true, however slow the machine."""
    end = time.monotonic() + PATIENCE
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


def _until_it_says(process: subprocess.Popen[str], word: str) -> str:
    text = ""
    assert process.stdout is not None
    for line in process.stdout:
        text += line
        if word in line:
            return text
    assert process.stderr is not None
    raise AssertionError(f"the server ended: {text}{process.stderr.read()}")


def _is_reserve(pid: int) -> bool:
    """Whether a worker process has no place: the place is in its arguments, or else in its name."""
    with contextlib.suppress(OSError):
        started_without = len(_command(pid).split(b"\0")) < 9
        return started_without and not Path(f"/proc/{pid}/comm").read_text().startswith("astra-gpu")
    return False


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}
