"""On a processor, PyTorch runs one batch after the other, and there is nothing to launch ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from astrarium.serving.live.backends.answers import named
from astrarium.serving.live.backends.contract import GraphRunner
from astrarium.serving.live.backends.torch.graph_shapes import GraphShape, GraphShapes
from astrarium.serving.live.backends.torch.tensors import portable, tensor_of
from astrarium.serving.live.tensors import Array, TensorSpec


class CpuRunner:
    def __init__(self, torch: Any, call: Callable[..., Any], names: Sequence[str], threads: int) -> None:
        self._torch = torch
        self._call = call
        self._names = names
        self.shapes = GraphShapes((), {})
        self.beside_graphs = 0
        torch.set_num_threads(threads)

    def capture(self, wanted: Sequence[GraphShape], model: str) -> bool:
        """Capture nothing: launching costs little here, and batches of every size run the same code."""
        return True

    def check(self, made_up: Any, outputs: Sequence[TensorSpec], model: str) -> bool:
        return True

    def capture_more(self, shape: GraphShape, model: str) -> bool:
        return False

    def hand_over(self, model: str, outputs: Sequence[TensorSpec]) -> GraphRunner | None:
        """Return nothing: there are no graphs."""
        return None

    def staging(self, size: int) -> Sequence[Array | None]:
        """Return no memory: inputs need none of their own here."""
        return ()

    def run(self, arrays: Sequence[Array], size: int) -> dict[str, Array]:
        with self._torch.inference_mode():
            tensors = [tensor_of(self._torch, array) for array in arrays]
            answer = named(self._call(*tensors), self._names)
            return {name: portable(self._torch, tensor).numpy() for name, tensor in answer.items()}

    def close(self) -> None:
        del self._call
