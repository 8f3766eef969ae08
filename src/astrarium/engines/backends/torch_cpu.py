"""PyTorch on the processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from astrarium.engines.backends.answers import named
from astrarium.engines.tensors import Array


class CpuRunner:
    def __init__(self, torch: Any, call: Callable[..., Any], names: Sequence[str], threads: int) -> None:
        self._torch, self._call, self._names = torch, call, names
        torch.set_num_threads(threads)

    def capture(self, sizes: Sequence[int], model: str) -> None:
        """There is nothing to capture: launching costs little here."""

    def staging(self, size: int) -> Sequence[Array | None]:
        """Inputs need no place of their own here."""
        return ()

    def run(self, arrays: Sequence[Array], size: int) -> dict[str, Array]:
        with self._torch.inference_mode():
            tensors = [self._torch.from_numpy(writable(array)) for array in arrays]
            answer = named(self._call(*tensors), self._names)
            return {name: portable(self._torch, tensor).numpy() for name, tensor in answer.items()}

    def close(self) -> None:
        del self._call


def writable(array: Array) -> Array:
    """PyTorch has no tensors that cannot be written: those are copied."""
    return array if array.flags.writeable else array.copy()


def portable(torch: Any, tensor: Any) -> Any:
    """numpy has no bfloat16."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor
