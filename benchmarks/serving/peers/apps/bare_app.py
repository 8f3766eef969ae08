"""An event loop with the simplest batching: a GPU that is free takes what waits, up to the limit.

No framework, no checks, no deadlines; a thread stands for each GPU. What a server could cost at the least.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import emulated_gpu
import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Batcher:
    def __init__(self, gpus: int, max_batch: int) -> None:
        self._waiting: deque[Client] = deque()
        self._idle = gpus
        self._max_batch = max_batch
        self._threads = ThreadPoolExecutor(gpus)
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, client: Client) -> None:
        self._waiting.append(client)
        if self._idle:
            self._idle -= 1
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        """One GPU, until nothing waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            size = min(self._max_batch, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(size)]
            await loop.run_in_executor(self._threads, emulated_gpu.run, size)
            for client in batch:
                client.answer()
        self._idle += 1


class Client(asyncio.Protocol):
    """One connection; a request on it is whole when its body is."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if separator and len(body) >= length(head):
            self._buffer = b""
            self._batcher.submit(self)

    def answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(ANSWER)


def length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def serve(port: int, gpus: int, max_batch: int) -> None:
    batcher = Batcher(gpus, max_batch)
    server = await asyncio.get_running_loop().create_server(
        lambda: Client(batcher), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--port", "--gpus", "--max-batch"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.gpus, options.max_batch))
