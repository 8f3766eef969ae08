"""Network threads hear of a tokenizer that was read again, although their model is as it was."""

from __future__ import annotations

from typing import Any, cast

from astrarium.server.contract import ModelCard, NumberedCard
from astrarium.server.protocol.network_threads import NativeThreads
from astrarium.serving.live.tensors import TensorSpec

IDS = TensorSpec("ids", "INT64", (-1,))
CARD = ModelCard(
    "m", "fake", (TensorSpec("TEXT", "BYTES", (1,)),), (TensorSpec("OUT", "FP32", (1,)),), 4, 10**9
)


class Front:
    """A front with one model, and threads that note which tokenizer they were told of."""

    def __init__(self) -> None:
        self.tokenizer = 0
        self.told: list[int] = []

    def cards(self) -> list[NumberedCard]:
        return [NumberedCard(0, CARD, tokenized=(self.tokenizer, (IDS,)))]

    def serve(self, *model: Any) -> None:
        self.told.append(model[-1][0])


def test_threads_are_told_of_another_tokenizer_and_of_nothing_twice() -> None:
    front = Front()
    threads = NativeThreads(cast(Any, front), cast(Any, front))
    threads.look()
    threads.look()
    assert front.told == [0]
    front.tokenizer = 1
    threads.look()
    assert front.told == [0, 1]
