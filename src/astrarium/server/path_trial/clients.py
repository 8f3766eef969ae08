"""Clients ask a server for as much as it answers: each sends its next call when it has the last answer.

As a process, since they need a core of their own: clients.py PORT COUNT SECONDS CALL-FILE... prints how many
answers had which status.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STATUS = slice(9, 12)  # in HTTP/1.1 200 OK


class Client(asyncio.Protocol):
    """A client sends the same call again and again; *answered* hears the status of each answer."""

    def __init__(self, call: bytes, answered: Callable[[str], object]) -> None:
        self._call = call
        self._answered = answered
        self._buffer = bytearray()
        self._whole = 0  # bytes of the answer that is coming; 0 before its head has come

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is none by its class
        self._transport.write(self._call)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._whole and (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._buffer, 0, end)
            self._whole = end + 4 + (int(length[1]) if length else 0)
        if self._whole and len(self._buffer) >= self._whole:
            self._answered(self._buffer[_STATUS].decode())
            self._buffer.clear()
            self._whole = 0
            self._transport.write(self._call)


async def asked(port: int, count: int, seconds: float, calls: Sequence[bytes]) -> Counter[str]:
    answers = Counter[str]()
    loop = asyncio.get_running_loop()
    for number in range(count):
        client = partial(Client, calls[number % len(calls)], lambda status: answers.update((status,)))
        await loop.create_connection(client, "127.0.0.1", port)
    await asyncio.sleep(seconds)
    return answers


def main() -> None:
    _, port, count, seconds, *files = sys.argv
    calls = [Path(file).read_bytes() for file in files]
    print(json.dumps(uvloop.run(asked(int(port), int(count), float(seconds), calls))))


if __name__ == "__main__":
    main()
