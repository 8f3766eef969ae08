"""What TLS costs: CPU time of the server for one plain call, read by network threads, by Python, and by
Python behind TLS; and what OpenSSL alone takes for the records of such a call, and for a handshake."""

from __future__ import annotations

import argparse
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import msgspec
from _shared import caption, circumstances, keep, number, parser, say
from load import Template
from peers.ours import COMMAND
from peers.peer import Peer, Place, Running, Settings, connected, trusting

CLIENTS = 8
PATIENCE_S = 60.0
ROUNDS = 2000  # of OpenSSL alone
HEAD = 200  # bytes of a head, about: those of a request and of an answer
HEADERS = {"Content-Type": "application/json"}
BODY = msgspec.json.encode(
    {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 64], "data": [0.37] * 64}]}
)


@dataclass(frozen=True)
class Files:
    """A certificate of this machine, and its key."""

    cert: str
    key: str


class Way(Peer):
    """Our server with a model that takes no time, entered by one way."""

    def __init__(self, name: str, path: str, tls: Files | None) -> None:
        self.name = name
        self.scheme = "http" if tls is None else "https"
        self._server: dict[str, Any] = {"path": path}
        if tls is not None:
            self._server["tls"] = {"cert": tls.cert, "key": tls.key}

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        path = place.folder / "scenario.yaml"
        tensors = {
            side: [{"name": name, "datatype": "FP32", "shape": [64]}]
            for side, name in (("inputs", "INPUT"), ("outputs", "OUTPUT"))
        }
        profile = {"alpha": "0.001ms", "beta": "0.001ms"}
        document = {
            "cluster": {"gpus": gpus},
            "models": {"plain": {"profile": profile, "slo": "10s", "max_batch": 16, **tensors}},
            "policy": {"name": "eager"},
            "server": self._server,
        }
        path.write_bytes(msgspec.yaml.encode(document))
        return [*COMMAND, "serve", str(path), "--http", str(place.port), "--grpc", str(place.grpc_port)]

    def template(self) -> Template:
        return Template("/v2/models/plain/infer", BODY)


@dataclass
class Row:
    name: str
    us: list[float] = field(default_factory=list)  # of one call, or of one round


def main() -> None:
    options = arguments()
    load_before = circumstances(options.date, 0.0)["load_after"]
    with certificate() as files:
        rows = [row for way in ways(files) for row in measured(way, options)]
        rows += alone(files, options.repeats)
    facts = circumstances(options.date, load_before)
    keep("tls", {**facts, "rows": [{"what": row.name, "us": statistics.median(row.us)} for row in rows]})
    print(table(rows))
    print(caption(facts))


def arguments() -> argparse.Namespace:
    flags = parser(__doc__)
    flags.add_argument("--repeats", type=int, default=3, help="3 unless given")
    flags.add_argument("--seconds", type=float, default=2.0, help="of each run, 2 unless given")
    return flags.parse_args()


@contextmanager
def certificate() -> Iterator[Files]:
    with tempfile.TemporaryDirectory() as folder:
        files = Files(f"{folder}/cert.pem", f"{folder}/key.pem")
        words = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"]
        command = ["openssl", "req", "-x509", "-nodes", *words, "-out", files.cert, "-keyout", files.key]
        subprocess.run(command, check=True, capture_output=True)
        yield files


def ways(files: Files) -> list[Way]:
    return [
        Way("network threads", "native", None),
        Way("Python", "python", None),
        Way("Python behind TLS", "auto", files),
    ]


def measured(way: Way, options: argparse.Namespace) -> list[Row]:
    rows = [Row(f"{way.name}, connections kept"), Row(f"{way.name}, a connection each")]
    with way.running(1, Settings()) as server:
        cost(server, 0.2, keeps=True)  # everything is touched once
        for turn in range(options.repeats):
            say(f"{way.name}, repetition {turn + 1} of {options.repeats}")
            for row, keeps in zip(rows, (True, False), strict=True):
                row.us.append(cost(server, options.seconds, keeps) * 1e6)
    return rows


def cost(server: Running, seconds: float, keeps: bool) -> float:
    """Return the CPU seconds of the server for a call, while some clients call as fast as they can."""
    answered: list[int] = []
    end = time.monotonic() + seconds
    clients = [
        threading.Thread(target=lambda: answered.append(calls(server, end, keeps))) for _ in range(CLIENTS)
    ]
    before = server.tree.cpu_s()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if len(answered) < CLIENTS:
        raise SystemExit("a client failed: see above")
    return (server.tree.cpu_s() - before) / sum(answered)


def calls(server: Running, end: float, keeps: bool) -> int:
    done = 0
    connection = connected(server.url, PATIENCE_S)
    while not done or time.monotonic() < end:
        connection.request("POST", server.templates[0].path, BODY, HEADERS)
        reply = connection.getresponse()
        reply.read()
        if reply.status != 200:
            raise ValueError(f"expected 200, got {reply.status}")
        done += 1
        if not keeps:
            connection.close()
            connection = connected(server.url, PATIENCE_S)
    connection.close()
    return done


class Pair:
    """A client and a server in memory; only the server's CPU time is counted."""

    def __init__(self, files: Files) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.cert, files.key)
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._server = context.wrap_bio(up, down, server_side=True)
        self._client = trusting().wrap_bio(down, up)
        self.us = 0.0

    def shake_hands(self) -> None:
        done = False
        while not done:
            done = stepped(self._client.do_handshake)
            done &= self._counted(lambda: stepped(self._server.do_handshake))

    def call(self, request: bytes, answer: bytes) -> None:
        self._client.write(request)
        self._counted(lambda: self._server.read(len(request)))
        self._counted(lambda: self._server.write(answer))
        self._client.read(len(answer))

    def _counted(self, do: Callable[[], Any]) -> Any:
        began = time.thread_time_ns()
        result = do()
        self.us += (time.thread_time_ns() - began) / 1e3
        return result


def stepped(shake: Callable[[], None]) -> bool:
    try:
        shake()
    except ssl.SSLWantReadError:
        return False
    return True


def alone(files: Files, repeats: int) -> list[Row]:
    records = Row("OpenSSL alone, records of a call")
    handshake = Row("OpenSSL alone, a handshake")
    message = bytes(HEAD) + BODY  # the answer is about as long
    for _ in range(repeats):
        pair = Pair(files)
        pair.shake_hands()
        handshake.us.append(pair.us)
        pair.us = 0.0
        for _ in range(ROUNDS):
            pair.call(message, message)
        records.us.append(pair.us / ROUNDS)
    return [records, handshake]


def table(rows: list[Row]) -> str:
    lines = ["| way | CPU of one, us | least to most |", "| --- | --- | --- |"]
    for row in rows:
        spread = f"{number(min(row.us))} to {number(max(row.us))}"
        lines.append(f"| {row.name} | {number(statistics.median(row.us))} | {spread} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
