"""A model of gpu.py behind LitServe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import graphed_model
import litserve
import torch


class Graphed(litserve.LitAPI):
    def __init__(self, folder: Path, **batching: Any) -> None:
        super().__init__(**batching)
        self._folder = folder

    def setup(self, device: str) -> None:
        self._model = graphed_model.load(self._folder, device)

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # a type would make it a query's field
        return torch.tensor(request["tokens"], dtype=torch.int64)

    def batch(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return inputs  # of unequal length

    def predict(self, x: list[torch.Tensor]) -> torch.Tensor:
        return self._model(x)

    def unbatch(self, output: torch.Tensor) -> list[list[float]]:
        return output.tolist()

    def encode_response(self, output: list[float]) -> dict[str, list[float]]:
        return {"output": output}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--port", "--max-batch", "--api-servers", "--workers"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--delay-s", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="of the model's code and served.json")
    options = parser.parse_args()
    api = Graphed(options.folder, max_batch_size=options.max_batch, batch_timeout=options.delay_s)
    server = litserve.LitServer(api, accelerator="auto", devices=1, workers_per_device=options.workers)
    server.run(
        host="127.0.0.1",
        port=options.port,
        num_api_servers=options.api_servers,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
