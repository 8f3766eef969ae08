"""The texts of one call are answered one by one, and whatever was answered is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from astrarium.server.contract import InferAnswer, InferCall, Kind, Refused, Stages
from astrarium.server.control.calls.rows_apart import answered_by_row
from astrarium.serving.live.tensors import Tensor, pack_bytes, to_array, to_bytes, unpack_bytes

BAD, LONG, SLOW = b"bad", b"long", b"slow"


class Answers:
    """A model that answers with the length of a text; `released` has those whose answers were given back."""

    def __init__(self) -> None:
        self.released: list[bytes] = []

    async def infer(self, call: InferCall) -> InferAnswer:
        assert call.rows == 1
        [text] = unpack_bytes(call.inputs[0].data)
        await asyncio.sleep(3600 if text == SLOW else 0)
        if text == BAD:
            raise Refused(Kind.BAD_REQUEST, "a bad text")
        numbers = np.full((1, 2 if text == LONG else 1), len(text))
        output = Tensor("LENGTH", "INT64", numbers.shape, to_bytes(numbers))
        stages = Stages(0, 1, 2, 3, 4, 10 - len(text))
        return InferAnswer([output], stages, len(text), 0, len(text) < 4, self._release(text))

    def _release(self, text: bytes) -> Callable[[], None]:
        return lambda: self.released.append(text)


def call_of(*texts: bytes) -> InferCall:
    return InferCall("m", [Tensor("TEXT", "BYTES", (len(texts), 1), pack_bytes(list(texts)))], len(texts), 0)


def ask(answers: Answers, *texts: bytes) -> InferAnswer:
    async def asked() -> InferAnswer:
        try:
            return await answered_by_row(call_of(*texts), answers.infer)
        finally:
            await asyncio.sleep(0)  # what is given back is given back a moment later

    return asyncio.run(asked())


def test_answers_are_joined_in_order_with_the_stages_of_the_last() -> None:
    answers = Answers()
    answer = ask(answers, b"the", b"a", b"of")
    assert to_array(answer.outputs[0]).tolist() == [[3], [1], [2]]
    assert (answer.stages.answered, answer.batch_size, answer.in_time) == (9, 1, True)
    assert sorted(answers.released) == [b"a", b"of", b"the"]
    answer.release()
    assert not ask(answers, b"the", b"later").in_time


def test_one_that_is_refused_refuses_all_and_keeps_nothing() -> None:
    answers = Answers()
    with pytest.raises(Refused, match="a bad text"):
        ask(answers, b"the", BAD, SLOW)
    assert answers.released == [b"the"]


def test_answers_of_unequal_shapes_cannot_be_joined() -> None:
    answers = Answers()
    with pytest.raises(Refused, match="answers of unequal shapes; send one text a call") as refused:
        ask(answers, b"the", LONG)
    assert refused.value.kind is Kind.MODEL_FAILED
    assert sorted(answers.released) == [LONG, b"the"]


def test_a_client_that_goes_away_keeps_nothing() -> None:
    async def gone(answers: Answers) -> None:
        task = asyncio.ensure_future(answered_by_row(call_of(b"the", SLOW), answers.infer))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    answers = Answers()
    asyncio.run(gone(answers))
    assert answers.released == [b"the"]
