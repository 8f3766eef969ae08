"""A client sends its request, waits for the answer, and sends it again; a measurement is what one costs."""

from __future__ import annotations

import re
import socket
import threading
import time
from typing import NamedTuple
from urllib.parse import urlsplit

from _ours import grown, metrics
from peers.peer import Running

from http_features.requests import Feature, features

LENGTH = re.compile(rb"\ncontent-length: (\d+)")
LONG = re.compile(r'astrarium_long_way_total\{reason="(.*)"\}')


class Client(threading.Thread):
    def __init__(self, address: tuple[str, int], feature: Feature, end: float) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._feature = feature
        self._end = end
        self.answered = 0
        self.error = ""

    def run(self) -> None:
        try:
            while self._goes_on():
                with socket.create_connection(self._address, timeout=60) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._talk(connection)
        except (OSError, ValueError) as error:
            self.error = f"{type(error).__name__}: {error}"

    def _goes_on(self) -> bool:
        """Each client has one answer at least, however slow the machine is."""
        return not self.answered or time.monotonic() < self._end

    def _talk(self, connection: socket.socket) -> None:
        feature = self._feature
        rest = b""
        while self._goes_on():
            if feature.waits:
                at = feature.request.index(b"\r\n\r\n") + 4
                connection.sendall(feature.request[:at])
                while not rest.endswith(b"\r\n\r\n"):
                    rest += received(connection)
                connection.sendall(feature.request[at:])
                rest = b""
            else:
                connection.sendall(feature.request)
            for _ in range(feature.times):
                rest = answer(connection, rest, feature.status)
            self.answered += feature.times
            if feature.closes:
                return


def answer(connection: socket.socket, data: bytes, status: int) -> bytes:
    """Read one answer; return what came after it."""
    while b"\r\n\r\n" not in data:
        data += received(connection)
    end = data.index(b"\r\n\r\n") + 4
    length = LENGTH.search(data, 0, end)
    if not data.startswith(b"HTTP/1.1 %d " % status) or length is None:
        raise ValueError(f"expected {status}, got {data[:300]!r}")
    whole = end + int(length[1])
    if len(data) >= whole:
        return data[whole:]
    left = whole - len(data)
    while left > 0:
        left -= len(received(connection))
    return b""


def received(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 20)
    if not data:
        raise ValueError("the server closed the connection")
    return data


class Cost(NamedTuple):
    cpu_s: float  # of one request
    way: str


def measure(feature: Feature, server: Running, seconds: float) -> Cost:
    address = urlsplit(server.url)
    end = time.monotonic() + seconds
    counted = metrics_of(server)
    cpu = server.tree.cpu_s()
    clients = [
        Client((str(address.hostname), int(address.port or 0)), feature, end)
        for _ in range(feature.connections)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    errors = [client.error for client in clients if client.error]
    answered = sum(client.answered for client in clients)
    if errors or not answered:
        raise SystemExit(f"{feature.name}: {errors[:1] or 'no answers'}")
    cost = (server.tree.cpu_s() - cpu) / answered
    return Cost(cost, way(grown(counted, metrics_of(server)), answered))


def metrics_of(server: Running) -> dict[str, float]:
    headers = server.templates[0].headers
    return metrics(server.url, dict(headers))


def way(counted: dict[str, float], answered: int) -> str:
    reasons = {matched[1]: count for name, count in counted.items() if (matched := LONG.match(name))}
    common = max(reasons, key=lambda reason: reasons[reason], default="")
    return f"long: {common}" if common and reasons[common] > 0.05 * answered else "short"


def compare(feature: Feature, running: dict[str, Running], seconds: float) -> None:
    """Add a cost, and its ratio to the plain request's just before: a machine has its better minutes."""
    plain = next(candidate for candidate in features() if candidate.name == feature.plain)
    beside = measure(plain, running[plain.server], seconds)
    own = measure(feature, running[feature.server], seconds)
    scale = len(feature.request) / len(plain.request) if feature.by_size else 1.0
    feature.costs.append(own.cpu_s)
    feature.ways.append(own.way)
    feature.ratios.append(own.cpu_s / beside.cpu_s / scale)
