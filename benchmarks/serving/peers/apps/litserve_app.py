"""The emulated GPU behind LitServe: one worker process for each."""

from __future__ import annotations

import argparse
from typing import Any

import emulated_gpu
import litserve


class Emulated(litserve.LitAPI):
    def setup(self, device: str) -> None:
        """There is nothing to load."""

    def decode_request(self, request: dict[str, float]) -> float:
        return request["input"]

    def batch(self, inputs: list[float]) -> list[float]:
        return inputs

    def predict(self, x: Any) -> Any:
        emulated_gpu.run(len(x) if isinstance(x, list) else 1)
        return x

    def unbatch(self, output: list[float]) -> list[float]:
        return output

    def encode_response(self, output: float) -> dict[str, float]:
        return {"output": output}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--port", "--gpus", "--max-batch"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--delay-s", type=float, required=True)
    parser.add_argument("--fast-queue", action="store_true")
    options = parser.parse_args()
    api = Emulated(max_batch_size=options.max_batch, batch_timeout=options.delay_s)
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=options.gpus, fast_queue=options.fast_queue
    )
    server.run(
        host="127.0.0.1",
        port=options.port,
        num_api_servers=1,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
