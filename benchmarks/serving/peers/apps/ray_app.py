"""The emulated GPU behind Ray Serve: one replica for each."""

from __future__ import annotations

import argparse
import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import emulated_gpu
import ray
from ray import serve
from starlette.requests import Request


def application(options: argparse.Namespace) -> Any:
    @serve.deployment(num_replicas=options.gpus, max_ongoing_requests=4096, ray_actor_options={"num_cpus": 0})
    class Emulated:
        def __init__(self) -> None:
            self._gpu = ThreadPoolExecutor(1)

        @serve.batch(max_batch_size=options.max_batch, batch_wait_timeout_s=options.delay_s)
        async def infer(self, inputs: list[float]) -> list[float]:
            await asyncio.get_running_loop().run_in_executor(self._gpu, emulated_gpu.run, len(inputs))
            return inputs

        async def __call__(self, request: Request) -> dict[str, float]:
            return {"output": await self.infer((await request.json())["input"])}

    return Emulated.bind()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--port", "--gpus", "--max-batch"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--delay-s", type=float, required=True)
    parser.add_argument("--folder", required=True)
    options = parser.parse_args()
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=options.folder,
        object_store_memory=128 * 2**20,
    )
    serve.start(
        http_options={"host": "127.0.0.1", "port": options.port}, logging_config={"enable_access_log": False}
    )
    serve.run(application(options), name="emulated")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    ray.shutdown()
