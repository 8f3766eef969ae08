"""The encoder of gpu.py behind Triton's Python backend."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy
import torch
import triton_python_backend_utils as triton


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        sys.path.insert(0, str(Path(args["model_repository"]) / args["model_version"]))  # of models.py
        from graphed_encoder import GraphedEncoder

        self._encoder = GraphedEncoder(64, "cuda")

    def execute(self, requests: list[Any]) -> list[Any]:
        tokens = [triton.get_input_tensor_by_name(request, "TOKENS").as_numpy() for request in requests]
        outputs = self._encoder(torch.from_numpy(numpy.concatenate(tokens))).numpy()
        ends = numpy.cumsum([len(array) for array in tokens])[:-1]
        return [
            triton.InferenceResponse([triton.Tensor("OUTPUT", part)]) for part in numpy.split(outputs, ends)
        ]
