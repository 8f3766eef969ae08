"""An answered call's stages on one line, for a header or metadata."""

from __future__ import annotations

from itertools import pairwise

from astrarium.server.contract import InferAnswer

# What happens between one instant of Stages and the next.
BETWEEN = ("admit", "queue", "hand_over", "execute", "answer")


def stage_line(answer: InferAnswer) -> str:
    """Return the stages on one line, in microseconds.

    For example 'admit=40, queue=2310, hand_over=35, execute=6125, answer=52, batch=4, gpu=0'.
    """
    times = [
        f"{name}={(end - start) // 1000}"
        for name, (start, end) in zip(BETWEEN, pairwise(answer.stages), strict=True)
    ]
    return ", ".join([*times, f"batch={answer.batch_size}", f"gpu={answer.gpu}"])
