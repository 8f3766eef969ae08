"""Texts of unequal length: an encoder of the size of BERT-base, 16 to 512 tokens, as they come.

Without a mask its answers change by padding, so only equal lengths share a batch; with one they need not.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from _shared import say
from load import Template, offer
from peers.peer import Running
from search import Plan, usable

from on_gpu.load_on_server import QUIET, served, spread
from on_gpu.models import infer
from on_gpu.scenario import COMMAND, promise
from on_gpu.servers import OnGpu

SLO_MS = 50.0
WEIGHTS = {16: 8, 24: 10, 32: 12, 48: 12, 64: 12, 96: 12, 128: 12, 192: 10, 256: 6, 384: 4, 512: 2}
SHOWN = (16, 128, 512)  # lengths whose latency is looked at while it is quiet
DIFFERENT = 8  # texts of each length
WORDS = 30522

CODE = '''
import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    def __init__(self, width=768, heads=12):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.split, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, seen):
        batch, length, width = x.shape
        parts = self.split(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts, attn_mask=seen)
        x = x + self.join(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.widen(self.between(x))))


class Texts(nn.Module):
    """Reads the first token's state, as BERT does."""

    def __init__(self, layers):
        super().__init__()
        self.words = nn.Embedding(30522, 768)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(768, 2)

    def forward(self, TOKENS, MASK=None):
        x = self.words(TOKENS)
        seen = None if MASK is None else MASK[:, None, None, :]
        for layer in self.layers:
            x = layer(x, seen)
        return self.head(x[:, 0])


def texts(layers=12):
    torch.manual_seed(0)
    return Texts(layers).eval()
'''


@dataclass(frozen=True)
class TextModel:
    name: str
    masked: bool

    def entry(self) -> dict[str, Any]:
        shape = [f"1..{max(WEIGHTS)}"]
        inputs = [{"name": "TOKENS", "datatype": "INT64", "shape": shape, "values": [0, WORDS - 1]}]
        entry: dict[str, Any] = {
            "slo": f"{SLO_MS:g}ms",
            "max_batch": 64,
            "backend": {"torch": {"model": "texts.py:texts", "dtype": "fp16"}},
            "inputs": inputs,
        }
        if self.masked:
            inputs.append({"name": "MASK", "datatype": "BOOL", "shape": shape})
            entry["mask"] = "MASK"
        return entry


TEXTS = (TextModel("texts", masked=False), TextModel("masked", masked=True))


def by_length(folder: Path, model: TextModel, plan: Plan) -> dict[str, Any]:
    """Profile, promise, serve: a case of gpu.py with lengths."""
    scenario = written(folder, model)
    subprocess.run([*COMMAND, "profile", str(scenario), "--write"], check=True, stdout=sys.stderr)
    promised = promise(scenario)
    say(f"{model.name} profiled; promised {promised:.0f} requests/s")
    server = TextServer(model.name, scenario)
    facts = {
        "model": model.name,
        "requests": "texts",
        "graphs": True,
        "policy": "default",
        "promised": promised,
    }
    result = {**facts, **served(server, 0.8 * promised, plan)}
    with server.running(1, server.settings[0]) as running:
        result["alone"] = {length: quiet(running, model.name, length, plan) for length in SHOWN}
        result["metrics"] = lengths_in(running)
    say(f"{model.name} alone {result['alone']}, {result['metrics']}, long way {result['long_way']}")
    return result


def written(folder: Path, model: TextModel) -> Path:
    (folder / "texts.py").write_text(CODE, encoding="utf-8")
    scenario = {
        "cluster": {"gpus": 1},
        "models": {model.name: model.entry()},
        "workload": {
            "arrivals": "poisson",
            "rate": "1000/s",
            "duration": "8s",
            "warmup": "1s",
            "lengths": {"weights": WEIGHTS},
        },
        "server": {"start_limit": "300s"},
    }
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario, sort_keys=False), encoding="utf-8")
    return path


def quiet(server: Running, name: str, length: int, plan: Plan) -> dict[str, float]:
    """Return the latency of one length while nearly nobody else is there."""
    only = requests(name, [length])
    offer(server.url, only, QUIET, 1.0, plan.slo_ms)
    return spread(usable(replace(server, templates=only), QUIET, plan, 5))


def lengths_in(server: Running) -> dict[str, float]:
    """Return what the server says of padding and of batches that it had to split."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    wanted = (
        "astrarium_request_length_total",
        "astrarium_computed_length_total",
        "astrarium_split_batches_total",
    )
    return {line.split("{")[0]: float(line.split()[-1]) for line in lines if line.startswith(wanted)}


class TextServer(OnGpu):
    def __init__(self, name: str, scenario: Path) -> None:
        self._name = name
        self.scenario = scenario

    def templates(self) -> tuple[Template, ...]:
        return requests(self._name, list(WEIGHTS))


def requests(name: str, lengths: Sequence[int]) -> tuple[Template, ...]:
    return tuple(infer(name, "TOKENS", "INT64", tokens, weight) for tokens, weight in items(lengths))


def items(lengths: Sequence[int] = tuple(WEIGHTS)) -> list[tuple[npt.NDArray[np.int64], float]]:
    """Return texts of these lengths, the same every time, each with the weight of a request with it."""
    several = product(lengths, range(DIFFERENT))
    return [(text(length, number), WEIGHTS[length] / DIFFERENT) for length, number in several]


def text(length: int, number: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng((length, number)).integers(WORDS, size=length).astype(np.int64)
