"""The texts of one call are answered one by one: each is as long as it is, and batches are made by that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from astrarium.server.contract import InferAnswer, InferCall, Kind, Refused
from astrarium.server.control.calls.tensor_store import joined
from astrarium.serving.live.tensors import Tensor, pack_bytes, unpack_bytes

Infer = Callable[[InferCall], Awaitable[InferAnswer]]


async def answered_by_row(call: InferCall, infer: Infer) -> InferAnswer:
    """Answer each row as a call of its own, and join the answers; all are refused where one is."""
    tasks = [asyncio.ensure_future(infer(row)) for row in _rows(call)]
    try:
        await asyncio.gather(*tasks)
        return _joined_answers(call, [task.result() for task in tasks])
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
    finally:
        for task in tasks:
            task.add_done_callback(_release)


def _release(task: asyncio.Future[InferAnswer]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().release()


def _rows(call: InferCall) -> Iterator[InferCall]:
    columns = [unpack_bytes(tensor.data) for tensor in call.inputs]
    for row in range(call.rows):
        pairs = zip(call.inputs, columns, strict=True)
        inputs = [
            Tensor(tensor.name, tensor.datatype, (1, *tensor.shape[1:]), pack_bytes([texts[row]]))
            for tensor, texts in pairs
        ]
        yield replace(call, inputs=inputs, rows=1)


def _joined_answers(call: InferCall, answers: Sequence[InferAnswer]) -> InferAnswer:
    """Return one answer, with the stages of the row that came last."""
    last = max(answers, key=lambda answer: answer.stages.answered)
    try:
        outputs = [joined(column) for column in zip(*(answer.outputs for answer in answers), strict=True)]
    except ValueError as error:
        raise Refused(Kind.MODEL_FAILED, f"model {call.model}: {error}; send one text a call") from None
    in_time = all(answer.in_time for answer in answers)
    return replace(last, outputs=outputs, in_time=in_time, release=lambda: None)
