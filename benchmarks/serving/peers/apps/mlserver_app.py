"""The emulated GPU behind MLServer, in its worker processes or in the server's own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import emulated_gpu
from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Emulated(MLModel):
    async def load(self) -> bool:
        self._gpus = ThreadPoolExecutor(int(self.settings.parameters.extra["gpus"]))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        tensor = payload.inputs[0]
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._gpus, emulated_gpu.run, tensor.shape[0])
        output = ResponseOutput(name="OUTPUT", shape=tensor.shape, datatype=tensor.datatype, data=tensor.data)
        return InferenceResponse(model_name=self.name, outputs=[output])
