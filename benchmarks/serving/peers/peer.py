"""What every server is to the benchmarks: how it is started, what to ask it, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from load import Template
from processes import Tree

from . import environments

APPS = Path(__file__).resolve().parent / "apps"
START_S = 120.0
V2_BODY = json.dumps(
    {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}
).encode()


@dataclass(frozen=True)
class Settings:
    """How a server forms batches; `mode` is for what only one of them has. No limit: it decides itself."""

    max_batch: int = 0
    delay_ms: float = 0.0
    mode: str = ""
    instances: int = 1  # of the model on each GPU

    def __str__(self) -> str:
        batching = f"batches of up to {self.max_batch}, {self.delay_ms:g} ms" if self.max_batch else ""
        instances = f"{self.instances} instances" if self.instances > 1 else ""
        return ", ".join(filter(None, (batching, self.mode, instances)))


def grid(
    batches: tuple[int, ...] = (8, 12, 16),
    delays: tuple[float, ...] = (0, 2, 5),
    modes: tuple[str, ...] = ("",),
) -> tuple[Settings, ...]:
    return tuple(Settings(batch, delay, mode) for mode in modes for batch in batches for delay in delays)


@dataclass(frozen=True)
class Place:
    """Where a server is to listen (HTTP; gRPC if it speaks it), and a folder for its files."""

    port: int
    grpc_port: int
    folder: Path


@dataclass(frozen=True)
class Running:
    url: str
    templates: tuple[Template, ...]
    tree: Tree
    place: Place


class Peer(ABC):
    """A server that can be compared: one file each."""

    name: str
    scheme = "http"  # or https, with whatever certificate
    environment = ""  # of environments.PACKAGES; our own Python if empty
    settings: tuple[Settings, ...] = grid()  # what tuning tries

    def candidates(self, gpus: int) -> tuple[Settings, ...]:
        """Return the settings that tuning tries with so many GPUs."""
        return self.settings

    @abstractmethod
    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]: ...

    @abstractmethod
    def template(self) -> Template: ...

    def templates(self) -> tuple[Template, ...]:
        return (self.template(),)

    def variables(self, place: Place) -> dict[str, str]:
        """Return what the server needs in its environment beyond ours."""
        return {}

    def clear(self, processes: list[int]) -> None:  # noqa: B027 (most have nothing to do)
        """Remove what it leaves behind outside its folder; these processes of it have ended."""

    @property
    def python(self) -> str:
        return str(environments.python(self.environment)) if self.environment else sys.executable

    def versions(self) -> dict[str, str]:
        return environments.versions(self.environment) if self.environment else {}

    @contextmanager
    def running(self, gpus: int, settings: Settings) -> Iterator[Running]:
        """Hand out a server that has answered; it and all its processes are gone afterwards."""
        with tempfile.TemporaryDirectory(prefix=f"bench-{self.name}-") as folder:
            place = Place(free_port(), free_port(), Path(folder))
            command = self.command(place, gpus, settings)
            # a GPU machine may have our packages on its path only, not installed
            path = os.pathsep.join([str(APPS), *filter(None, [os.environ.get("PYTHONPATH")])])
            variables = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **self.variables(place)}
            tree = Tree(command, variables, Path(folder) / "log.txt")
            try:
                url = f"{self.scheme}://127.0.0.1:{place.port}"
                running = Running(url, self.templates(), tree, place)
                until_ready(running, START_S)
                yield running
            finally:
                processes = [process.pid for process in tree.stats()]
                tree.stop()
                self.clear(processes)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Answer(NamedTuple):
    status: int  # 0: none
    seconds: float
    body: bytes = b""


def ask(url: str, template: Template, patience_s: float = 5.0) -> Answer:
    """Send one request on a connection of its own."""
    connection = connected(url, patience_s)
    began = time.monotonic()
    try:
        headers = {"Content-Type": "application/json", **template.headers}
        connection.request("POST", template.path, template.body, headers)
        reply = connection.getresponse()
        body = reply.read()
        return Answer(reply.status, time.monotonic() - began, body)
    except (OSError, http.client.HTTPException):
        return Answer(0, time.monotonic() - began)
    finally:
        connection.close()


def connected(url: str, patience_s: float) -> http.client.HTTPConnection:
    address = urlsplit(url)
    host = str(address.hostname)
    if address.scheme == "http":
        return http.client.HTTPConnection(host, address.port, timeout=patience_s)
    return http.client.HTTPSConnection(host, address.port, timeout=patience_s, context=trusting())


def trusting() -> ssl.SSLContext:
    """Return a client's context that takes any certificate: ours are made for a run."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def until_ready(server: Running, patience_s: float) -> None:
    end = time.monotonic() + patience_s
    last = Answer(0, 0.0)
    while time.monotonic() < end:
        if not server.tree.alive:
            raise RuntimeError(f"the server ended while it was starting:\n{server.tree.log[-9000:]}")
        last = ask(server.url, server.templates[0])
        if last.status == 200:
            return
        time.sleep(0.1)
    problem = f"no answer within {patience_s:g} s, at last {last.status}, {last.body[:500]!r}"
    raise RuntimeError(f"{server.tree.log[-9000:]}\n{problem}")


def until_quiet(server: Running, patience_s: float = 30.0, quick_s: float = 0.05) -> None:
    """Wait until what an earlier load left behind is gone: three quick answers in a row."""
    end = time.monotonic() + patience_s
    in_a_row = 0
    while in_a_row < 3 and time.monotonic() < end:
        status, took, _ = ask(server.url, server.templates[0])
        in_a_row = in_a_row + 1 if status == 200 and took < quick_s else 0
        time.sleep(0.02)
    if in_a_row < 3:
        print(f"still busy after {patience_s:g} s (status {status}, {took * 1e3:.1f} ms)", file=sys.stderr)
