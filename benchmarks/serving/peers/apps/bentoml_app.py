"""The emulated GPU behind BentoML: one worker process for each, with its adaptive batching."""

from __future__ import annotations

import os

import bentoml
import emulated_gpu
import numpy

GPUS = int(os.environ["PEER_GPUS"])
MAX_BATCH = int(os.environ["PEER_MAX_BATCH"])
MAX_LATENCY_MS = int(os.environ["PEER_MAX_LATENCY_MS"])


@bentoml.service(workers=GPUS, threads=1, logging={"access": {"enabled": False}}, metrics={"enabled": False})
class Emulated:
    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH, max_latency_ms=MAX_LATENCY_MS)
    def infer(self, inputs: numpy.ndarray) -> numpy.ndarray:
        emulated_gpu.run(len(inputs))
        return inputs
