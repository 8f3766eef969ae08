"""A recommender so small that the path of calls is full before the GPU is: 64 numbers in, one out.

`astrarium profile --write` measures what a call takes of the path: the promise is the lesser of path and GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from _shared import say
from load import Template
from search import Plan

from on_gpu.load_on_server import served
from on_gpu.scenario import COMMAND, output_of
from on_gpu.servers import OnGpu

NAME = "recommender"
SLO_MS = 10.0
FEATURES = 64
DIFFERENT = 64  # requests
GUESS = 200_000.0  # requests/s, where the search begins
CODE = f"""
import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear({FEATURES}, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)]
        self.net = nn.Sequential(*layers)

    def forward(self, FEATURES):
        return self.net(FEATURES.to(self.net[0].weight.dtype))


def recommender():
    torch.manual_seed(0)
    return Recommender().eval()
"""


def recommender(folder: Path, plan: Plan) -> dict[str, Any]:
    """Profile, promise and serve: a case of gpu.py."""
    scenario = written(folder)
    subprocess.run([*COMMAND, "profile", str(scenario), "--write"], check=True, stdout=sys.stderr)
    goodput = output_of("goodput", str(scenario), "--seeds", "1")
    result = served(RecommenderServer(scenario), GUESS, plan)
    promised = {"promised": goodput["promised"], "promised_by_gpu": goodput["goodput"]}
    say(f"{NAME}: {promised}, carried by the server's own account {result['carries']:,.0f} requests/s")
    return {"model": NAME, "graphs": True, "policy": "default", **promised, **result}


def written(folder: Path) -> Path:
    (folder / "recommender.py").write_text(CODE, encoding="utf-8")
    scenario = {
        "cluster": {"gpus": 1},
        "models": {
            NAME: {
                "slo": f"{SLO_MS:g}ms",
                "max_batch": 256,
                "backend": {"torch": {"model": f"recommender.py:{NAME}", "dtype": "fp16"}},
                "inputs": [{"name": "FEATURES", "datatype": "FP32", "shape": [FEATURES]}],
            }
        },
        "workload": {"arrivals": "poisson", "rate": "1000/s", "duration": "2s", "warmup": "500ms"},
        "server": {"start_limit": "300s"},
    }
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario, sort_keys=False), encoding="utf-8")
    return path


class RecommenderServer(OnGpu):
    def __init__(self, scenario: Path) -> None:
        self.scenario = scenario

    def templates(self) -> tuple[Template, ...]:
        return tuple(request(number) for number in range(DIFFERENT))


def request(number: int) -> Template:
    data = np.random.default_rng(number).normal(size=FEATURES).astype(np.float32).tobytes()
    tensor = {"name": "FEATURES", "datatype": "FP32", "shape": [1, FEATURES]}
    inputs = [{**tensor, "parameters": {"binary_data_size": len(data)}}]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return Template(f"/v2/models/{NAME}/infer", head + data, headers)
