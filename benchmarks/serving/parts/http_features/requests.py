"""Requests with a feature each, as bytes, and the plain request that each is compared with."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

BAR = 3.0  # times the plain request
MIB = 1 << 20
KEY = "a-key-of-this-benchmark"
NUMBERS = [round(0.37 * at, 2) for at in range(64)]
WORDS = [f"word {at}" for at in range(8)]


def json_input(name: str, datatype: str, data: Sequence[Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": [1, len(data)], "datatype": datatype, "data": list(data), **more}


def binary(name: str, datatype: str, elements: int, size: int) -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    return {"name": name, "shape": [1, elements], "datatype": datatype, "parameters": parameters}


def body(inputs: list[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"inputs": inputs, **more}).encode()


def http(
    content: bytes, *headers: str, path: str = "plain", version: str = "1.1", length: bool = True
) -> bytes:
    head = [f"POST /v2/models/{path}/infer HTTP/{version}", "Host: localhost", *headers]
    if length:
        head.append(f"Content-Length: {len(content)}")
    return "\r\n".join([*head, "", ""]).encode() + content


def with_binary(inputs: list[dict[str, Any]], data: bytes, path: str = "plain", *headers: str) -> bytes:
    text = body(inputs, parameters={"binary_data_output": True})
    return http(text + data, f"Inference-Header-Content-Length: {len(text)}", *headers, path=path)


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


PLAIN = body([json_input("IN0", "FP32", NUMBERS)])
DATA = struct.pack("<64f", *NUMBERS)
INPUT = binary("IN0", "FP32", 64, 256)


def plain_ones() -> Iterator[Feature]:
    yield Feature("plain JSON", http(PLAIN))
    yield Feature("plain binary", with_binary([INPUT], DATA), "plain binary")


def tensors() -> Iterator[Feature]:
    halves = struct.pack("<64e", *NUMBERS)
    words = [json_input("IN0", "BYTES", WORDS)]
    texts = [binary("IN0", "BYTES", 8, len(packed(WORDS)))]
    four = [f"IN{at}" for at in range(4)]
    yield Feature("FP16, JSON", http(body([json_input("IN0", "FP16", NUMBERS)]), path="half"))
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
    escaped = body([json_input("IN0", "BYTES", ["é\n" + word for word in WORDS])])
    yield Feature("BYTES with escapes, JSON", http(escaped, path="text"))
    yield Feature(
        "4 inputs and outputs, JSON",
        http(body([json_input(n, "FP32", NUMBERS[:16]) for n in four]), path="many"),
    )
    inputs = [binary(n, "FP32", 16, 64) for n in four]
    yield Feature("4 inputs and outputs, binary", with_binary(inputs, DATA, "many"), "plain binary")


def requests() -> Iterator[Feature]:
    inputs = [json_input("IN0", "FP32", NUMBERS)]
    data_first = [dict(reversed(json_input("IN0", "FP32", NUMBERS).items()))]
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
        text = body(
            [json_input("IN0", "FP32", [0.125] * (size // 7))], parameters={"binary_data_output": True}
        )
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
        http(body([json_input("IN0", "FP32", NUMBERS)], parameters={"priority": 7}), path="levels"),
        400,
    )
    yield wrong("no key", http(PLAIN), 401, "keys")
