"""A repeated order runs a batch again and again, as a worker would: to measure how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from astrarium.serving.live import messages
from astrarium.serving.live.backends import contract
from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.layout import aligned, fixed_bytes
from astrarium.serving.live.messages import BatchDone, RunBatch, Shapes
from astrarium.serving.live.tensors import Array, TensorSpec
from astrarium.serving.live.worker.batch_turn import BatchTurn, ServedModel
from astrarium.serving.live.worker.packing import together

_OPEN_REPLY = 1 << 14  # bytes for an answer whose size is open


def _open_reply(model: Any, batch: Batch) -> int:
    """Return the bytes for an answer whose size is open: one that is as long as the longest input."""
    longest = max((*batch.lengths, *(size for array in batch.inputs.values() for size in array.shape[1:]), 1))
    shapes = [[longest if size < 0 else size for size in spec.shape] for spec in model.outputs]
    sized = [replace(spec, shape=tuple(shape)) for spec, shape in zip(model.outputs, shapes, strict=True)]
    return max(_OPEN_REPLY, fixed_bytes(sized) or 0)


def _stacked(spec: TensorSpec, batch: Batch) -> Array:
    """Return an input with a row for each item, also where the items, which are alike, are packed."""
    array = batch.inputs[spec.name]
    return array.reshape(batch.size, -1, *array.shape[1:]) if spec.packed else array


class RepeatedOrder:
    """A repeated order is to run a batch, with memory for its inputs and its answers."""

    def __init__(self, model: Any, batch: Batch) -> None:
        self._model = model
        self._served = ServedModel.of(model, replace(together(model.inputs, model), allowed=True))
        inputs = self._served.padding.sent
        arrays = [np.ascontiguousarray(_stacked(spec, batch)) for spec in inputs]
        item = sum(aligned(array.nbytes // batch.size) for array in arrays)
        reply_bytes = fixed_bytes(model.outputs) or _open_reply(model, batch)
        self.memory = memoryview(bytearray(batch.size * (item + reply_bytes)))
        self._write(arrays, item)
        replies = batch.size * item
        members = [
            (row * item, 1, 0, replies + row * reply_bytes, reply_bytes, 0) for row in range(batch.size)
        ]
        shapes: Shapes = [((1, *array.shape[1:]), array.nbytes // batch.size) for array in arrays]
        fixed = fixed_bytes(inputs) is not None
        open_shapes: list[Shapes | None] | None = None if fixed else [shapes] * batch.size
        self._packet = messages.encode(RunBatch(0, 0, messages.packed(members), 0, open_shapes))

    def _write(self, arrays: Sequence[Array], item: int) -> None:
        for row in range(len(arrays[0])):
            at = row * item
            for array in arrays:
                data = array[row].tobytes()
                self.memory[at : at + len(data)] = data
                at += aligned(len(data))

    def launched(self) -> BatchTurn:
        turn = BatchTurn(cast(RunBatch, messages.decode_order(self._packet)), 0, self._served, self.memory)
        turn.launch()
        return turn

    def carried_out(self, times: int) -> list[BatchDone]:
        """Return what native code says about the batch, run so many times in a row."""
        packets = self._model.graphs.rehearse(self.memory, self._packet, times)
        news = list(map(messages.decode_news, packets))
        for result in news:
            if not isinstance(result, BatchDone):
                broken = isinstance(result, messages.BatchBroken | messages.WorkerBroken)
                raise contract.ModelFailed(result.error if broken else str(result))
        return cast(list[BatchDone], news)
