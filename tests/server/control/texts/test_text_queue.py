"""Texts that wait for the tokenizer: who goes together, who is too late, and who never gets tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from astrarium.core.quantities import MILLISECOND as MS
from astrarium.core.quantities import Time
from astrarium.server.contract import InferCall, Kind, Refused
from astrarium.server.control.calls.ticket import Tensors, Ticket
from astrarium.server.control.texts.text_queue import AT_ONCE, NO_MEMORY, TextQueue
from astrarium.serving.ledger import Outcome
from astrarium.serving.live.layout import tensors_at, whole_shapes
from astrarium.serving.live.tensors import Tensor, TensorSpec, pack_bytes
from astrarium.serving.scenario.tokenization import Tokenization
from tests.support.live_fakes import FakeAnswer, Stage
from tests.support.server.tokenizers import saved

TOKENS = TensorSpec("input_ids", "INT64", (-1,))
TENSORS = Tensors((TOKENS,), (TensorSpec("OUTPUT", "FP32", (1,)),))
NEEDED = 2 * MS


class HeldThreads(Executor):
    """Threads whose work is done when a test says so; `sizes` tells how many texts came each time."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._held: list[Callable[[], None]] = []

    def submit(self, work: Any, /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.sizes.append(len(args[0]))
        self._held.append(lambda: future.set_result(work(*args)))
        return future

    def let_go(self) -> None:
        held, self._held = self._held, []
        for work in held:
            work()


class Scene:
    """A queue of texts on a stage, whose clock stands still unless it is told to go on."""

    def __init__(self, file: str, **stage: Any) -> None:
        self.stage = Stage(**stage)
        self.threads = HeldThreads()
        self.choice = Tokenization(file, longest=8)
        self.queue = TextQueue(
            self.choice,
            "models.m0.preprocess",
            self.stage.tensor_store,
            self.threads,
            self.stage.open_calls.inputs_made,
            self.stage.loop.clock,
            lambda model: NEEDED,
        )

    def send(self, text: bytes = b"the", within: Time = 100 * MS, tensors: Tensors = TENSORS) -> Ticket:
        now = self.stage.loop.now
        call = InferCall("m0", [Tensor("TEXT", "BYTES", (1, 1), pack_bytes([text]))], 1, now)
        ticket = Ticket(call, 0, tensors, 0, now + within, FakeAnswer())
        self.queue.take(ticket)
        self.stage.coordinator.accounts.models[0].accepted += 1
        self.stage.open_calls.take(ticket)
        return ticket

    async def finish(self) -> None:
        while self.queue._working is not None:
            self.threads.let_go()
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
        await asyncio.sleep(0)
        tickets += [scene.send(b"server"), scene.send(b"a text")]
        await scene.finish()
        assert scene.threads.sizes == [1, 2]
        assert [scene.tokens(ticket) for ticket in tickets] == [[2, 4, 3], [2, 5, 3], [2, 7, 8, 3]]
        assert all(ticket.inputs_ready and not ticket.broken for ticket in tickets)

    asyncio.run(scenario())


def test_no_batch_keeps_others_waiting_long(scene: Scene) -> None:
    async def scenario() -> None:
        for _ in range(3):
            scene.send(b"the " * (AT_ONCE // 4))
        await scene.finish()
        assert scene.threads.sizes == [1, 1, 1]

    asyncio.run(scenario())


def test_a_call_that_would_wait_too_long_is_refused_at_once(scene: Scene) -> None:
    async def scenario() -> None:
        scene.send()
        await asyncio.sleep(0)  # it is under way
        scene.send()
        scene.stage.loop.now += 10 * MS
        scene.send(within=2 * 10 * MS + NEEDED)
        with pytest.raises(Refused, match="2 texts wait for the tokenizer of model m0") as refused:
            scene.send(within=2 * 10 * MS + NEEDED - 1)
        assert refused.value.kind is Kind.OVERLOADED
        await scene.finish()

    asyncio.run(scenario())


def test_a_call_that_has_become_too_late_gets_no_tokens(scene: Scene) -> None:
    async def scenario() -> None:
        scene.send()
        await asyncio.sleep(0)
        late, in_time = scene.send(within=50 * MS), scene.send(within=90 * MS)
        scene.stage.loop.now += 50 * MS - NEEDED + 1
        await scene.finish()
        assert scene.threads.sizes == [1, 1]
        assert (late.outcome, late.cause) == (Outcome.DROPPED, "expired")
        assert late.block < 0
        assert scene.tokens(in_time) == [2, 4, 3]

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
        scene.queue._choice = Tokenization(str(tmp_path / "none.json"), longest=8)
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
        assert scene.threads.sizes == [1, 1]
        assert scene.tokens(before) == [2, 4, 3]
        assert after.shapes is None
        shapes = whole_shapes(fixed.inputs, 1)
        [tensor] = tensors_at(scene.stage.tensor_store.memory.view, after.block, fixed.inputs, shapes)
        assert len(tensor.data) == 8 * 8

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

    asyncio.run(scenario())
