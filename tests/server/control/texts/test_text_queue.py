"""Texts that wait for the tokenizer: who goes together, who is too late, and who never gets tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from astrarium.core.optional import extension
from astrarium.core.quantities import MILLISECOND as MS
from astrarium.core.quantities import Time
from astrarium.server.contract import InferCall, Kind, Refused
from astrarium.server.control.calls.refusals import refusal
from astrarium.server.control.calls.ticket import Tensors, Ticket
from astrarium.server.control.texts.text_queue import NO_MEMORY
from astrarium.server.control.texts.tokenizer import Tokenizer
from astrarium.serving.ledger import Outcome
from astrarium.serving.live.layout import tensors_at, whole_shapes
from astrarium.serving.live.tensors import Tensor, TensorSpec, pack_bytes
from astrarium.serving.scenario.tokenization import Tokenization
from tests.support.live_fakes import FakeAnswer, Stage, texts_of
from tests.support.server.tokenizers import saved

TOKENS = TensorSpec("input_ids", "INT64", (-1,))
TENSORS = Tensors((TOKENS,), (TensorSpec("OUTPUT", "FP32", (1,)),))
NEEDED = 2 * MS
FIELD = "models.m0.preprocess"
AT_ONCE = cast(Any, extension("_front")).TextQueue.AT_ONCE


class Scene:
    """A queue of texts on a stage, whose clock stands still unless it is told to go on.

    Nobody tokenizes but `tokenize` and `finish`; `sizes` tells how many texts went together each time.
    """

    def __init__(self, file: str, **stage: Any) -> None:
        self.stage = Stage(**stage)
        self.queue = texts_of(self.stage, NEEDED)
        self.queue.add(0, Tokenization(file, longest=8), FIELD)
        self.sizes: list[int] = []

    def take(self) -> Any:
        """Take what waits, as a thread would; None where nothing does."""
        batch = self.queue._native.try_take(self.stage.loop.now)
        if batch is not None:
            self.sizes.append(batch.size)
        return batch

    def send(self, text: bytes = b"the", within: Time = 100 * MS, tensors: Tensors = TENSORS) -> Ticket:
        now = self.stage.loop.now
        call = InferCall("m0", [Tensor("TEXT", "BYTES", (1, 1), pack_bytes([text]))], 1, now)
        ticket = Ticket(call, 0, tensors, 0, now + within, FakeAnswer())
        self.queue.take(ticket)
        self.stage.coordinator.accounts.models[0].accepted += 1
        self.stage.open_calls.take(ticket)
        return ticket

    async def finish(self) -> None:
        while (batch := self.take()) is not None:
            self.queue.tokenize(batch)
            await asyncio.sleep(0)

    def tokens(self, ticket: Ticket) -> list[int]:
        assert ticket.shapes is not None
        [tensor] = tensors_at(self.stage.tensor_store.memory.view, ticket.block, [TOKENS], ticket.shapes)
        return [int.from_bytes(tensor.data[at : at + 8], "little") for at in range(0, len(tensor.data), 8)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(saved(tmp_path))


def test_all_that_wait_go_together_once_the_others_are_done(scene: Scene) -> None:
    async def scenario() -> None:
        tickets = [scene.send(b"the")]
        batch = scene.take()
        tickets += [scene.send(b"server"), scene.send(b"a text")]
        assert scene.take() is None
        scene.queue.tokenize(batch)
        await scene.finish()
        assert scene.sizes == [1, 2]
        assert [scene.tokens(ticket) for ticket in tickets] == [[2, 4, 3], [2, 5, 3], [2, 7, 8, 3]]
        assert all(ticket.inputs_ready and not ticket.broken for ticket in tickets)

    asyncio.run(scenario())


def test_no_batch_keeps_others_waiting_long(scene: Scene) -> None:
    async def scenario() -> None:
        for _ in range(3):
            scene.send(b"the " * (AT_ONCE // 4))
        await scene.finish()
        assert scene.sizes == [1, 1, 1]

    asyncio.run(scenario())


def test_a_call_that_would_wait_too_long_is_refused_at_once(scene: Scene) -> None:
    async def scenario() -> None:
        scene.send()
        batch = scene.take()
        scene.send()
        scene.stage.loop.now += 10 * MS
        slack = round(10 * MS / 0.85)  # of which the first one has used all that is for tokens
        scene.send(within=slack + NEEDED + 1)
        with pytest.raises(Refused, match="3 texts wait for the tokenizer of model m0") as refused:
            scene.send(within=slack + NEEDED - 1)
        assert refused.value.kind is Kind.OVERLOADED
        scene.queue.tokenize(batch)
        await scene.finish()

    asyncio.run(scenario())


def test_a_call_that_has_become_too_late_gets_no_tokens(scene: Scene) -> None:
    async def scenario() -> None:
        scene.send()
        scene.queue.tokenize(scene.take())
        late, in_time = scene.send(within=50 * MS), scene.send(within=90 * MS)
        scene.stage.loop.now += 50 * MS - NEEDED + 1
        await scene.finish()
        assert scene.sizes == [1, 1]
        assert (late.outcome, late.cause) == (Outcome.DROPPED, "expired")
        assert late.block < 0
        assert scene.tokens(in_time) == [2, 4, 3]

    asyncio.run(scenario())


def test_texts_take_no_more_memory_than_there_is_for_them(scene: Scene) -> None:
    async def scenario() -> None:
        most = scene.stage.tensor_store.arena.size // 2
        first = scene.send(b"a" * (most - 4))
        with pytest.raises(Refused, match="1 texts wait for the tokenizer"):
            scene.send(b"the server")
        scene.send(b"the")
        await scene.finish()
        scene.send(b"the server")
        await scene.finish()
        assert first.inputs_ready

    asyncio.run(scenario())


class Panic(BaseException):
    """What the library raises where it panics is no Exception."""


@pytest.mark.parametrize("error", [Panic, MemoryError, ValueError])
def test_whatever_breaks_costs_its_batch_alone(
    scene: Scene, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise error("it was odd")

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Tokenizer, "encode", broken)
            ticket = scene.send()
            await scene.finish()
        assert (ticket.outcome, ticket.blamed) == (Outcome.FAILED, Kind.MODEL_FAILED)
        assert ticket.reason == "its text could not be tokenized: it was odd"
        after = scene.send()
        await scene.finish()
        assert scene.tokens(after) == [2, 4, 3]

    asyncio.run(scenario())


def test_who_takes_texts_and_makes_nothing_of_them_ends_them(scene: Scene) -> None:
    """A batch that is lost does not hold up the model's next one."""

    async def scenario() -> None:
        scene.send()
        assert scene.take() is not None
        ticket = scene.send()
        await scene.finish()
        assert scene.tokens(ticket) == [2, 4, 3]

    asyncio.run(scenario())


def test_a_closed_queue_takes_no_texts(scene: Scene) -> None:
    async def scenario() -> None:
        scene.queue.close()
        with pytest.raises(Refused, match="the server stops") as refused:
            scene.send()
        assert refused.value.kind is Kind.UNAVAILABLE
        assert scene.queue._native.take() is None

    asyncio.run(scenario())


def test_a_bad_text_fails_alone_and_is_its_clients_fault(scene: Scene) -> None:
    async def scenario() -> None:
        bad, good = scene.send(b"\xff"), scene.send()
        await scene.finish()
        assert (bad.outcome, bad.cause, bad.blamed) == (Outcome.FAILED, "inputs", Kind.BAD_REQUEST)
        assert "not UTF-8" in bad.reason
        assert scene.tokens(good) == [2, 4, 3]

    asyncio.run(scenario())


def test_a_tokenizer_that_cannot_be_read_any_more_is_our_fault(scene: Scene, tmp_path: Path) -> None:
    async def scenario() -> None:
        scene.queue.add(0, Tokenization(str(tmp_path / "none.json"), longest=8), FIELD)
        ticket = scene.send()
        await scene.finish()
        assert (ticket.outcome, ticket.blamed) == (Outcome.FAILED, Kind.MODEL_FAILED)
        assert "models.m0.preprocess.tokenizer: expected a tokenizer.json" in ticket.reason

    asyncio.run(scenario())


def test_a_model_that_was_loaded_anew_has_its_own_inputs(scene: Scene) -> None:
    async def scenario() -> None:
        fixed = Tensors((TensorSpec("TOKENS", "INT64", (8,)),), TENSORS.outputs)
        before, after = scene.send(), scene.send(tensors=fixed)
        await scene.finish()
        assert scene.sizes == [1, 1]
        assert scene.tokens(before) == [2, 4, 3]
        assert after.shapes is None
        shapes = whole_shapes(fixed.inputs, 1)
        [tensor] = tensors_at(scene.stage.tensor_store.memory.view, after.block, fixed.inputs, shapes)
        assert len(tensor.data) == 8 * 8

    asyncio.run(scenario())


def test_a_model_that_is_loaded_anew_has_its_tokenizer_read_again(scene: Scene, tmp_path: Path) -> None:
    async def scenario() -> None:
        scene.send()
        await scene.finish()
        inputs = (TOKENS,)
        number = scene.queue.tokenizer(0, inputs)
        await scene.queue.renew(0, inputs)
        assert scene.queue.tokenizer(0, inputs) == number, "its file is as it was"
        [file] = tmp_path.iterdir()
        file.write_text(file.read_text() + " ")
        await scene.queue.renew(0, inputs)
        assert scene.queue.tokenizer(0, inputs) != number
        ticket = scene.send()
        await scene.finish()
        assert scene.tokens(ticket) == [2, 4, 3]
        file.write_text("")
        with pytest.raises(Refused, match="it was loaded, and its tokenizer was not: models"):
            await scene.queue.renew(0, inputs)

    asyncio.run(scenario())


@pytest.fixture
def small(tmp_path: Path) -> Scene:
    return Scene(saved(tmp_path), memory=1 << 14)


def test_a_text_for_whose_tokens_there_is_no_memory_fails(small: Scene) -> None:
    async def scenario() -> None:
        assert small.stage.tensor_store.arena.take(1 << 14) is not None
        ticket = small.send()
        await small.finish()
        assert (ticket.outcome, ticket.reason) == (Outcome.FAILED, NO_MEMORY)
        told = refusal(ticket)
        assert (told.kind, told.retry_after) == (Kind.OVERLOADED, 1.0)

    asyncio.run(scenario())
