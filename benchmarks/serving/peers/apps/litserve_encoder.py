"""The encoder of gpu.py behind LitServe: half precision, CUDA graphs for batches of 1, 2, 4, ..., as ours."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import litserve
import torch

LENGTH = 128


class Encoder(litserve.LitAPI):
    def setup(self, device: str) -> None:
        import models

        self._net = models.encoder().half().to(device)
        self._inputs = torch.zeros((self.max_batch_size, LENGTH), dtype=torch.int64, device=device)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        size = 1
        while size <= self.max_batch_size:
            self._graphs[size] = self._captured(size)
            size *= 2

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

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # a type would make it a query's field
        return torch.tensor(request["tokens"], dtype=torch.int64)

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(inputs)

    @torch.inference_mode()
    def predict(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(-1, LENGTH)
        graph, outputs = self._graphs[min(size for size in self._graphs if size >= len(x))]
        self._inputs[: len(x)].copy_(x)
        graph.replay()
        return outputs[: len(x)].cpu()

    def unbatch(self, output: torch.Tensor) -> list[list[float]]:
        return output.tolist()

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"output": output.tolist() if isinstance(output, torch.Tensor) else output}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--port", "--max-batch", "--api-servers"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--delay-s", type=float, required=True)
    parser.add_argument("--models", required=True, help="the folder of models.py")
    options = parser.parse_args()
    sys.path.insert(0, options.models)
    api = Encoder(max_batch_size=options.max_batch, batch_timeout=options.delay_s)
    server = litserve.LitServer(api, accelerator="cuda", devices=1, workers_per_device=1)
    server.run(
        host="127.0.0.1",
        port=options.port,
        num_api_servers=options.api_servers,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
