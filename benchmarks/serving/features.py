"""What each feature of an HTTP request costs: CPU time of the server for one, beside the plain request's.

The model takes no time, so what is counted is reading, scheduling, copying and answering. A feature may cost
three times the plain request: `way` says whether network threads read it (short) or Python (long, with the
reason).
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import socket
import statistics
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from _ours import grown, metrics
from _shared import caption, circumstances, keep, number, parser, say
from load import Template
from peers.ours import COMMAND
from peers.peer import Peer, Place, Running, Settings

BAR = 3.0  # times the plain request
MIB = 1 << 20
KEY = "a-key-of-this-benchmark"
LENGTH = re.compile(rb"\ncontent-length: (\d+)")
LONG = re.compile(r'astrarium_long_way_total\{reason="(.*)"\}')
NUMBERS = [round(0.37 * at, 2) for at in range(64)]
WORDS = [f"word {at}" for at in range(8)]


# The models: each gives back its inputs.


def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def model(*kinds: tuple[str, int]) -> dict[str, Any]:
    """A model with an input and an output of each kind: a datatype and a length."""
    inputs = [tensor(f"IN{at}", datatype, size) for at, (datatype, size) in enumerate(kinds)]
    outputs = [tensor(f"OUT{at}", datatype, size) for at, (datatype, size) in enumerate(kinds)]
    profile = {"alpha": "0.001ms", "beta": "0.001ms"}
    return {"profile": profile, "slo": "10s", "max_batch": 16, "inputs": inputs, "outputs": outputs}


MODELS = {
    "plain": model(("FP32", 64)),
    "half": model(("FP16", 64)),
    "brain": model(("BF16", 64)),
    "text": model(("BYTES", 8)),
    "many": model(*[("FP32", 16)] * 4),
    "open": model(("FP32", -1)),
    "sums": model(("FP32", -1)) | {"outputs": [tensor("OUT0", "FP32", 1)]},
    "levels": model(("FP32", 64)) | {"priorities": {1: "5s", 2: "10s"}},
}


class Server(Peer):
    """Our server with these models, and with a key where it has one."""

    name = "astrarium"

    def __init__(self, key: str = "") -> None:
        self._key = key

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        path = place.folder / "scenario.yaml"
        keys = place.folder / "keys"
        keys.write_text(self._key + "\n", encoding="utf-8")
        server = {"payload": "64MiB"} | ({"api_keys": str(keys)} if self._key else {})
        told = {"cluster": {"gpus": gpus}, "models": MODELS, "policy": {"name": "eager"}, "server": server}
        path.write_bytes(msgspec.yaml.encode(told))
        return [*COMMAND, "serve", str(path), "--http", str(place.port), "--grpc", str(place.grpc_port)]

    def template(self) -> Template:
        headers = {"X-API-Key": self._key} if self._key else {}
        return Template("/v2/models/plain/infer", body([given("IN0", "FP32", NUMBERS)]), headers)


# The requests, as bytes.


def given(name: str, datatype: str, data: Sequence[Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": [1, len(data)], "datatype": datatype, "data": list(data), **more}


def binary(name: str, datatype: str, elements: int, size: int) -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    return {"name": name, "shape": [1, elements], "datatype": datatype, "parameters": parameters}


def body(inputs: list[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"inputs": inputs, **more}).encode()


def http(
    content: bytes, *lines: str, path: str = "plain", version: str = "1.1", length: bool = True
) -> bytes:
    head = [f"POST /v2/models/{path}/infer HTTP/{version}", "Host: localhost", *lines]
    if length:
        head.append(f"Content-Length: {len(content)}")
    return "\r\n".join([*head, "", ""]).encode() + content


def with_binary(inputs: list[dict[str, Any]], data: bytes, path: str = "plain", *lines: str) -> bytes:
    text = body(inputs, parameters={"binary_data_output": True})
    return http(text + data, f"Inference-Header-Content-Length: {len(text)}", *lines, path=path)


def packed(words: Sequence[str]) -> bytes:
    return b"".join(struct.pack("<I", len(word)) + word.encode() for word in words)


def chunks(content: bytes, count: int) -> bytes:
    size = -(-len(content) // count)
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])


@dataclass(frozen=True)
class Feature:
    """A request with a feature; its cost is compared with that of `plain`, byte for byte if `by_size`."""

    name: str
    request: bytes
    plain: str = "plain JSON"
    by_size: bool = False
    connections: int = 16
    times: int = 1  # requests that are sent at once
    waits: bool = False  # for 100 Continue before the body
    closes: bool = False
    server: str = "open"
    status: int = 200
    bar: float | None = BAR
    costs: list[float] = field(default_factory=list)  # CPU seconds
    ratios: list[float] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)


@cache
def features() -> list[Feature]:
    return [*plain_ones(), *tensors(), *requests(), *http_features(), *large_ones(), *mistakes()]


PLAIN = body([given("IN0", "FP32", NUMBERS)])
DATA = struct.pack("<64f", *NUMBERS)
INPUT = binary("IN0", "FP32", 64, 256)


def plain_ones() -> Iterator[Feature]:
    yield Feature("plain JSON", http(PLAIN))
    yield Feature("plain binary", with_binary([INPUT], DATA), "plain binary")


def tensors() -> Iterator[Feature]:
    halves = struct.pack("<64e", *NUMBERS)
    words = [given("IN0", "BYTES", WORDS)]
    texts = [binary("IN0", "BYTES", 8, len(packed(WORDS)))]
    four = [f"IN{at}" for at in range(4)]
    yield Feature("FP16, JSON", http(body([given("IN0", "FP16", NUMBERS)]), path="half"))
    yield Feature(
        "FP16, binary", with_binary([binary("IN0", "FP16", 64, 128)], halves, "half"), "plain binary"
    )
    yield Feature(
        "BF16, binary", with_binary([binary("IN0", "BF16", 64, 128)], halves, "brain"), "plain binary"
    )
    yield Feature("BYTES in and out, JSON", http(body(words), path="text"))
    both = body(words, parameters={"binary_data_output": True})
    yield Feature("BYTES in JSON, out binary", http(both, path="text"))
    yield Feature("BYTES in and out, binary", with_binary(texts, packed(WORDS), "text"), "plain binary")
    escaped = body([given("IN0", "BYTES", ["é\n" + word for word in WORDS])])
    yield Feature("BYTES with escapes, JSON", http(escaped, path="text"))
    yield Feature(
        "4 inputs and outputs, JSON", http(body([given(n, "FP32", NUMBERS[:16]) for n in four]), path="many")
    )
    inputs = [binary(n, "FP32", 16, 64) for n in four]
    yield Feature("4 inputs and outputs, binary", with_binary(inputs, DATA, "many"), "plain binary")


def requests() -> Iterator[Feature]:
    inputs = [given("IN0", "FP32", NUMBERS)]
    data_first = [dict(reversed(given("IN0", "FP32", NUMBERS).items()))]
    yield Feature("outputs chosen", http(body(inputs, outputs=[{"name": "OUT0"}])))
    yield Feature("an id", http(body(inputs, id="request-17")))
    yield Feature("an id that is not ASCII", http(body(inputs, id="Anfrage für Élodie")))
    yield Feature("a timeout", http(body(inputs, parameters={"timeout": 5_000_000})))
    yield Feature("a priority", http(body(inputs, parameters={"priority": 1}), path="levels"))
    yield Feature("an application, parameter", http(body(inputs, parameters={"application": "search"})))
    yield Feature("an application, header", http(PLAIN, "X-Astrarium-Application: search"))
    yield Feature("unknown parameters", http(body(inputs, parameters={"trace": "a-7", "level": 3})))
    yield Feature("unknown fields", http(body(inputs, client="a notebook", attempt=2)))
    nested = {"name": "x", "tags": [1, 2]}
    yield Feature("unknown fields, nested", http(body(inputs, client=nested)))
    yield Feature("data before shape", http(body(data_first)))
    yield Feature("a version in the path", http(PLAIN, path="plain/versions/1"))
    yield Feature("a key, X-API-Key", http(PLAIN, f"X-API-Key: {KEY}"), server="keys")
    yield Feature("a key, Bearer", http(PLAIN, f"Authorization: Bearer {KEY}"), server="keys")
    yield Feature("the stages (X-Astrarium-Timeline)", http(PLAIN, "X-Astrarium-Timeline: 1"))


def http_features() -> Iterator[Feature]:
    encoded = "Content-Encoding: "
    yield Feature("a gzip body", http(gzip.compress(PLAIN), encoded + "gzip"))
    yield Feature("a deflate body", http(zlib.compress(PLAIN), encoded + "deflate"))
    yield Feature("answer in gzip", http(PLAIN, "Accept-Encoding: gzip"))
    yield Feature("answer in deflate", http(PLAIN, "Accept-Encoding: deflate"))
    yield Feature("gzip both ways", http(gzip.compress(PLAIN), encoded + "gzip", "Accept-Encoding: gzip"))
    chunked = "Transfer-Encoding: chunked"
    yield Feature("chunked, 1 chunk", http(chunks(PLAIN, 1), chunked, length=False))
    yield Feature("chunked, 16 chunks", http(chunks(PLAIN, 16), chunked, length=False))
    yield Feature("Expect: 100-continue", http(PLAIN, "Expect: 100-continue"), waits=True)
    yield Feature("Content-Type with a charset", http(PLAIN, "Content-Type: application/json; charset=utf-8"))
    yield Feature("pipelined, 4 at once", http(PLAIN) * 4, times=4)
    yield Feature("Connection: close", http(PLAIN, "Connection: close"), closes=True)
    yield Feature("HTTP/1.0", http(PLAIN, version="1.0"), closes=True)


def large_ones() -> Iterator[Feature]:
    """Beside a plain request that is as large as the short way reads, byte for byte."""

    def raw(size: int, path: str = "sums") -> bytes:
        return with_binary([binary("IN0", "FP32", size // 4, size)], bytes(size), path)

    def listed(size: int) -> bytes:
        text = body([given("IN0", "FP32", [0.125] * (size // 7))], parameters={"binary_data_output": True})
        return http(text, path="open")

    yield Feature("15 MiB, binary", raw(15 * MIB), "15 MiB, binary", connections=2)
    yield Feature("17 MiB, binary", raw(17 * MIB), "15 MiB, binary", by_size=True, connections=2)
    yield Feature("48 MiB, binary", raw(48 * MIB), "15 MiB, binary", by_size=True, connections=2)
    both = "15 MiB, and back"
    yield Feature(both, raw(15 * MIB, "open"), both, connections=2)
    yield Feature("30 MiB, and back", raw(30 * MIB, "open"), both, by_size=True, connections=2)
    yield Feature("48 MiB, and back", raw(48 * MIB, "open"), both, by_size=True, connections=2)
    yield Feature("0.9 MiB of JSON", listed(9 * MIB // 10), "0.9 MiB of JSON", connections=2)
    yield Feature("4 MiB of JSON", listed(4 * MIB), "0.9 MiB of JSON", by_size=True, connections=2)


def mistakes() -> Iterator[Feature]:
    """What is wrong is explained on the long way; it has no bar."""

    def wrong(name: str, request: bytes, status: int, server: str = "open") -> Feature:
        return Feature(f"wrong: {name}", request, server=server, status=status, bar=None)

    yield wrong("no JSON", http(b"hello"), 400)
    yield wrong("an unknown model", http(PLAIN, path="nobody"), 404)
    yield wrong("another version", http(PLAIN, path="plain/versions/9"), 404)
    yield wrong(
        "an unknown priority",
        http(body([given("IN0", "FP32", NUMBERS)], parameters={"priority": 7}), path="levels"),
        400,
    )
    yield wrong("no key", http(PLAIN), 401, "keys")


# The clients: each sends its request, waits for the answer, and sends it again.


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
                with socket.create_connection(self._address, timeout=60) as line:
                    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._talk(line)
        except (OSError, ValueError) as error:
            self.error = f"{type(error).__name__}: {error}"

    def _goes_on(self) -> bool:
        """Each client has one answer at least, however slow the machine is."""
        return not self.answered or time.monotonic() < self._end

    def _talk(self, line: socket.socket) -> None:
        feature = self._feature
        rest = b""
        while self._goes_on():
            if feature.waits:
                at = feature.request.index(b"\r\n\r\n") + 4
                line.sendall(feature.request[:at])
                while not rest.endswith(b"\r\n\r\n"):
                    rest += received(line)
                line.sendall(feature.request[at:])
                rest = b""
            else:
                line.sendall(feature.request)
            for _ in range(feature.times):
                rest = answer(line, rest, feature.status)
            self.answered += feature.times
            if feature.closes:
                return


def answer(line: socket.socket, data: bytes, status: int) -> bytes:
    """Read one answer; return what came after it."""
    while b"\r\n\r\n" not in data:
        data += received(line)
    end = data.index(b"\r\n\r\n") + 4
    found = LENGTH.search(data, 0, end)
    if not data.startswith(b"HTTP/1.1 %d " % status) or found is None:
        raise ValueError(f"expected {status}, got {data[:300]!r}")
    whole = end + int(found[1])
    if len(data) >= whole:
        return data[whole:]
    left = whole - len(data)
    while left > 0:
        left -= len(received(line))
    return b""


def received(line: socket.socket) -> bytes:
    data = line.recv(1 << 20)
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
    reasons = {found[1]: count for name, count in counted.items() if (found := LONG.match(name))}
    common = max(reasons, key=lambda reason: reasons[reason], default="")
    return f"long: {common}" if common and reasons[common] > 0.05 * answered else "short"


def compare(feature: Feature, running: dict[str, Running], seconds: float) -> None:
    """Add a cost, and its ratio to the plain request's just before: a machine has its better minutes."""
    plain = next(one for one in features() if one.name == feature.plain)
    beside = measure(plain, running[plain.server], seconds)
    found = measure(feature, running[feature.server], seconds)
    scale = len(feature.request) / len(plain.request) if feature.by_size else 1.0
    feature.costs.append(found.cpu_s)
    feature.ways.append(found.way)
    feature.ratios.append(found.cpu_s / beside.cpu_s / scale)


# The table.


def main() -> None:
    options = arguments()
    load_before = circumstances(options.date, 0.0)["load_after"]
    chosen = [feature for feature in features() if re.search(options.only, feature.name)]
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(Server(key).running(1, Settings()))
            for name, key in (("open", ""), ("keys", KEY))
        }
        for turn in range(options.repeats + 1):
            say(f"repetition {turn} of {options.repeats}" if turn else "everything is touched once")
            for feature in chosen:
                if turn:
                    compare(feature, running, options.seconds)
                else:
                    measure(feature, running[feature.server], 0.2)
    facts = circumstances(options.date, load_before)
    rows = [row(feature) for feature in chosen]
    keep("features", {**facts, "rows": rows})
    print(table(rows))
    print(caption(facts))


def arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--repeats", type=int, default=3, help="3 unless given")
    made.add_argument("--seconds", type=float, default=1.0, help="of each feature, 1 unless given")
    made.add_argument("--only", default="", help="features whose names match this expression")
    return made.parse_args()


def row(feature: Feature) -> dict[str, Any]:
    return {
        "feature": feature.name,
        "way": statistics.mode(feature.ways),
        "us": statistics.median(feature.costs) * 1e6,
        "beside": "" if feature.plain == feature.name else feature.plain,
        "ratio": statistics.median(feature.ratios),
        "spread": [min(feature.ratios), max(feature.ratios)],
        "bar": feature.bar,
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| feature | way | CPU of one, us | times | spread | beside | met |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in rows:
        low, high = one["spread"]
        met = "" if one["bar"] is None or not one["beside"] else "yes" if one["ratio"] <= one["bar"] else "NO"
        numbers = f"{number(one['us'])} | {one['ratio']:.2f} | {low:.2f} to {high:.2f}"
        lines.append(f"| {one['feature']} | {one['way']} | {numbers} | {one['beside']} | {met} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
