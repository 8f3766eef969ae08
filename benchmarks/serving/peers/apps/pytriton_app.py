"""The emulated GPU behind PyTriton: a callable for each."""

from __future__ import annotations

import argparse
from typing import Any

import emulated_gpu
import numpy
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def emulated() -> Any:
    @batch
    def infer(INPUT: numpy.ndarray) -> dict[str, numpy.ndarray]:  # noqa: N803 (the tensor's name)
        emulated_gpu.run(len(INPUT))
        return {"OUTPUT": INPUT}

    return infer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--port", "--grpc-port", "--gpus", "--max-batch", "--delay-us"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    server = TritonConfig(
        http_address="127.0.0.1",
        http_port=options.port,
        grpc_address="127.0.0.1",
        grpc_port=options.grpc_port,
        allow_metrics=False,
    )
    with Triton(config=server) as triton:
        triton.bind(
            model_name="resnet",
            infer_func=[emulated() for _ in range(options.gpus)],
            inputs=[Tensor(name="INPUT", dtype=numpy.float32, shape=(1,))],
            outputs=[Tensor(name="OUTPUT", dtype=numpy.float32, shape=(1,))],
            config=ModelConfig(
                max_batch_size=options.max_batch,
                batcher=DynamicBatcher(max_queue_delay_microseconds=options.delay_us),
            ),
        )
        triton.serve()
