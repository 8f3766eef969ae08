"""Two models as a user writes them, and requests to them: the same for the same number."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from load import Template

from astrarium.serving.live.tensors import DATATYPES

CODE = '''
import torch
import torchvision


class Vision(torch.nn.Module):
    """Takes bytes as they come from a decoder and normalizes them on the GPU."""

    def __init__(self):
        super().__init__()
        self.net = torchvision.models.resnet50().to(memory_format=torch.channels_last)

    def forward(self, IMAGE):
        image = (IMAGE.to(next(self.net.parameters()).dtype) - 118) / 58
        return self.net(image.to(memory_format=torch.channels_last))


class Encoder(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
        self.words = torch.nn.Embedding(30522, 768)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(768, 2)

    def forward(self, TOKENS):
        return self.head(self.layers(self.words(TOKENS))[:, 0])


def resnet50():
    torch.manual_seed(0)
    return Vision().eval()


def encoder(layers=12):
    torch.manual_seed(0)
    return Encoder(layers).eval()
'''


@dataclass(frozen=True)
class Model:
    name: str
    tensor: str
    datatype: str
    shape: tuple[int, ...]
    item_bytes: int
    values: int  # from 0 on, in its inputs

    def item(self, number: int) -> npt.NDArray[np.integer[Any]]:
        """Return the inputs of one request: the same for the same number."""
        chosen = np.random.default_rng(number).integers(self.values, size=self.shape)
        return chosen.astype(DATATYPES[self.datatype])


MODELS = (
    Model("encoder", "TOKENS", "INT64", (128,), 1024, 30522),
    Model("resnet50", "IMAGE", "UINT8", (3, 224, 224), 150_528, 256),
)
DIFFERENT = 16  # requests to each model


def requests(name: str, model: Model, weight: float = 1.0) -> tuple[Template, ...]:
    return tuple(request(name, model, number, weight / DIFFERENT) for number in range(DIFFERENT))


def request(name: str, model: Model, number: int, weight: float) -> Template:
    return infer(name, model.tensor, model.datatype, model.item(number), weight)


def infer(name: str, tensor: str, datatype: str, item: npt.NDArray[Any], weight: float) -> Template:
    """Return a request of the protocol's version 2 with one item, in binary both ways."""
    data = item.tobytes()
    described = {"name": tensor, "datatype": datatype, "shape": [1, *item.shape]}
    inputs = [{**described, "parameters": {"binary_data_size": len(data)}}]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return Template(f"/v2/models/{name}/infer", head + data, headers, weight)
