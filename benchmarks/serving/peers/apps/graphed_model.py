"""A model of gpu.py for other servers: half precision, CUDA graphs by size of the batch and length of texts.

The file `served.json`, beside the model's code, says which model it is and how its batches are formed. A
batch is padded to its longest text, rounded up to one of a few lengths; or the texts of each rounded length
are computed by themselves, one group after another. Padding changes the answers of a model without a mask, so
where texts are padded, the model is given one, as whoever pads behind these servers has to.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence


def load(folder: Path, device: str) -> GraphedModel:
    served = json.loads((folder / "served.json").read_text(encoding="utf-8"))
    sys.path.insert(0, str(folder))
    make = getattr(importlib.import_module(served["module"]), served["function"])
    return GraphedModel(make(**served["arguments"]), device, **served["batches"])


class GraphedModel:
    """Without a GPU it runs as it is, in single precision, so that its answers can be checked there."""

    def __init__(
        self, net: nn.Module, device: str, max_batch: int, lengths: Sequence[int], masked: bool, grouped: bool
    ) -> None:
        on_gpu = torch.device(device).type == "cuda"
        self._net = net.to(device, torch.float16 if on_gpu else torch.float32)
        self._lengths = lengths
        self._grouped = grouped
        self._sizes = batch_sizes(max_batch)
        elements = max_batch * max(lengths)
        self._tokens = torch.zeros(elements, dtype=torch.int64, device=device)
        self._mask = torch.ones(elements, dtype=torch.bool, device=device) if masked else None
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        if on_gpu:
            self._capture()

    @torch.inference_mode()
    def __call__(self, texts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return an answer for each text, on the CPU and in half precision."""
        together = groups([len(text) for text in texts], self._lengths, self._grouped)
        answers = torch.cat([self._answers([texts[i] for i in group]) for group in together]).cpu().half()
        in_order = torch.empty_like(answers)
        in_order[list(chain.from_iterable(together))] = answers
        return in_order

    def _answers(self, texts: Sequence[torch.Tensor]) -> torch.Tensor:
        tokens, mask = padded(texts, self._lengths)
        length = tokens.shape[1]
        self._tokens[: tokens.numel()].copy_(tokens.flatten())
        if self._mask is not None:
            self._mask[: mask.numel()].copy_(mask.flatten())
        size = min(size for size in self._sizes if size >= len(texts))
        outputs = self._run(size, length)
        return outputs[: len(texts)].clone()  # graphs share memory: the next one overwrites it

    def _run(self, size: int, length: int) -> torch.Tensor:
        if (size, length) not in self._graphs:
            return self._net(*self._inputs(size, length))
        graph, outputs = self._graphs[size, length]
        graph.replay()
        return outputs

    def _inputs(self, size: int, length: int) -> list[torch.Tensor]:
        whole = [self._tokens] if self._mask is None else [self._tokens, self._mask]
        return [buffer[: size * length].view(size, length) for buffer in whole]

    @torch.inference_mode()
    def _capture(self) -> None:
        pool = torch.cuda.graph_pool_handle()
        for size, length in product(reversed(self._sizes), sorted(self._lengths, reverse=True)):
            inputs = self._inputs(size, length)
            for _ in range(3):
                self._net(*inputs)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                outputs = self._net(*inputs)
            self._graphs[size, length] = graph, outputs


def padded(texts: Sequence[torch.Tensor], lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return texts in a table as long as a graph is, and a mask of what is text in it."""
    tokens = pad_sequence(list(texts), batch_first=True)
    length = rounded_up(tokens.shape[1], lengths)
    mask = torch.arange(length) < torch.tensor([[len(text)] for text in texts])
    return functional.pad(tokens, (0, length - tokens.shape[1])), mask


def groups(texts: Sequence[int], lengths: Sequence[int], grouped: bool) -> list[list[int]]:
    """Return the positions of the texts that are computed together, for texts of these lengths."""
    if not grouped:
        return [list(range(len(texts)))]
    rounded = [rounded_up(text, lengths) for text in texts]
    return [[i for i, own in enumerate(rounded) if own == length] for length in sorted(set(rounded))]


def rounded_up(length: int, lengths: Sequence[int]) -> int:
    if length > max(lengths):
        raise ValueError(f"a text has {length} tokens; it may have {max(lengths)} at most")
    return min(longer for longer in lengths if longer >= length)


def batch_sizes(largest: int) -> list[int]:
    """Return the sizes that have graphs: powers of two, numbers halfway between them, and the largest."""
    powers = [1 << power for power in range(largest.bit_length())]
    halfway = [power + power // 2 for power in powers if power >= 4]
    return sorted({size for size in (*powers, *halfway) if size < largest} | {largest})
