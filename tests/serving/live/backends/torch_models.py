"""A small PyTorch model, written as a user would write it, and how tests load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from astrarium.serving.live.backends import backends
from astrarium.serving.live.backends.contract import Batch, ModelFiles, Place
from astrarium.serving.live.tensors import TensorSpec

X = TensorSpec("x", "FP32", (4,))

NET = """\
import torch

class Net(torch.nn.Module):
    def __init__(self, width=3):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, width)

    def forward(self, x):
        return torch.relu(self.layer(x))

class Two(torch.nn.Module):
    def forward(self, tokens, scale):
        return {"TAGS": tokens * 2, "MEAN": tokens.float().mean(1) * scale}

def broken():
    raise RuntimeError("no weights")

def not_a_module():
    return 3

class Fails(torch.nn.Module):
    def forward(self, x):
        return x @ x
"""


def files(home: Path, model: str, inputs: Any = (X,), outputs: Any = (), **options: Any) -> ModelFiles:
    return ModelFiles("m", "torch", {"model": model, **options}, inputs, outputs, 8, home)


def load(home: Path, model: str, inputs: Any = (X,), outputs: Any = (), **options: Any) -> Any:
    return backends.get("torch")(files(home, model, inputs, outputs, **options), Place())


def net(home: Path) -> Any:
    from astrarium.serving.live.backends.references import loaded

    return loaded("net.py:Net", home, "model")().eval()


def rows(size: int) -> Batch:
    return Batch(size, {"x": np.random.default_rng(size).standard_normal((size, 4)).astype(np.float32)})
