"""ModelStreamInfer: requests of a stream run side by side, and are answered in the order they came."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from astrarium.server.contract import Refused
from astrarium.server.grpc.errors import our_fault
from astrarium.server.grpc.messages import message
from astrarium.server.grpc.requests import InferMessage

log = logging.getLogger(__name__)
DEPTH = 64  # requests of one stream that may be under way at once
Reading = Callable[[bytes], InferMessage]
StreamAnswering = Callable[[InferMessage], Awaitable[Any]]
_Queue = asyncio.Queue["asyncio.Task[Any] | None"]


async def answered(
    requests: AsyncIterator[bytes], reading: Reading, answering: StreamAnswering
) -> AsyncIterator[Any]:
    """Yield the responses to *requests*; an error belongs to its request, and the stream goes on."""
    under_way: _Queue = asyncio.Queue(DEPTH)
    reader = asyncio.create_task(_start_each(requests, partial(_response, reading, answering), under_way))
    try:
        while (task := await under_way.get()) is not None:
            yield await task
        await reader
    finally:
        await _cancel_all(reader, under_way)


async def _start_each(
    requests: AsyncIterator[bytes], respond: Callable[[bytes], Coroutine[Any, Any, Any]], under_way: _Queue
) -> None:
    try:
        async for data in requests:
            await under_way.put(asyncio.create_task(respond(data)))
    finally:
        # Where this fails because the queue is full, the writer is gone already.
        with contextlib.suppress(asyncio.CancelledError):
            await under_way.put(None)


async def _response(reading: Reading, answering: StreamAnswering, data: bytes) -> Any:
    response = message("ModelStreamInferResponse")()
    infer_message = None
    try:
        infer_message = reading(data)
        response.infer_response.CopyFrom(await answering(infer_message))
    except Refused as refused:
        response.error_message = f"[{refused.kind.grpc}] {refused.reason}"
    except Exception as error:
        log.exception("a request of a stream failed")
        response.error_message = f"[INTERNAL] {our_fault(error)}"
    response.infer_response.id = "" if infer_message is None else infer_message.request.id
    response.infer_response.parameters["triton_final_response"].bool_param = True
    return response


async def _cancel_all(reader: asyncio.Task[None], under_way: _Queue) -> None:
    tasks: list[asyncio.Task[Any]] = [reader]
    while not under_way.empty():
        task = under_way.get_nowait()
        tasks += [task] if task is not None else []
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
