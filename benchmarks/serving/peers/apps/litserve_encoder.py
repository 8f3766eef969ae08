"""The encoder of gpu.py behind LitServe."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import litserve
import torch
from graphed_encoder import LENGTH, GraphedEncoder


class Encoder(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self._encoder = GraphedEncoder(self.max_batch_size, device)

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # a type would make it a query's field
        return torch.tensor(request["tokens"], dtype=torch.int64)

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(inputs)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self._encoder(x.reshape(-1, LENGTH))

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
