"""A model of gpu.py behind Triton's Python backend.

Tensors come and go by DLPack: the stub of PyTriton's wheel was built for numpy 1 and misreads arrays where
numpy 2 is installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphed_model
import torch
import triton_python_backend_utils as triton


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = graphed_model.load(Path(args["model_repository"]) / args["model_version"], device)

    def execute(self, requests: list[Any]) -> list[Any]:
        tensors = [triton.get_input_tensor_by_name(request, "TOKENS") for request in requests]
        calls = [torch.from_dlpack(tensor.to_dlpack()) for tensor in tensors]
        answers = self._model([text for call in calls for text in call.unbind()])
        return [response(part) for part in answers.split([len(call) for call in calls])]


def response(answers: torch.Tensor) -> Any:
    return triton.InferenceResponse([triton.Tensor.from_dlpack("OUTPUT", answers)])
