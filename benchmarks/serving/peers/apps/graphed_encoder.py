"""The encoder of gpu.py for other servers: half precision, CUDA graphs for batches of 1, 2, 4, ..."""

from __future__ import annotations

import torch

LENGTH = 128


class GraphedEncoder:
    def __init__(self, max_batch: int, device: str) -> None:
        import models

        self._net = models.encoder().half().to(device)
        self._inputs = torch.zeros((max_batch, LENGTH), dtype=torch.int64, device=device)
        sizes = [1 << power for power in range(max_batch.bit_length())]
        self._graphs = {size: self._captured(size) for size in sizes}

    @torch.inference_mode()
    def _captured(self, size: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._net(self._inputs[:size])
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._net(self._inputs[:size])
        return graph, outputs

    @torch.inference_mode()
    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        graph, outputs = self._graphs[min(size for size in self._graphs if size >= len(tokens))]
        self._inputs[: len(tokens)].copy_(tokens)
        graph.replay()
        return outputs[: len(tokens)].cpu()
