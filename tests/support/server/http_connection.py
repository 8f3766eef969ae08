"""Requests and connections by hand, for tests of how bytes come and go."""

from __future__ import annotations

import asyncio
import json
from typing import Any

BODY = json.dumps({"inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]})
LONG = json.dumps(
    {"inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}], "more": {"deep": 1}}
)


def request(body: str = BODY, model: str = "echo", *lines: str) -> bytes:
    head = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join([*head, "", body]).encode()


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        status, headers, body = await self.answer_bytes()
        return status, headers, json.loads(body)

    async def answer_bytes(self) -> tuple[int, dict[str, str], bytes]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], Any]:
        self.writer.write(data)
        return await self.answer()

    @classmethod
    async def to(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))
