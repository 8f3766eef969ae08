"""Real models on a real GPU, with and without CUDA graphs: ResNet50 on images of 150 kB and an encoder of the
size of BERT-base on 128 tokens (1 kB), both in half precision.

    python benchmarks/serving/gpu.py

For each: what `astrarium profile` measures, the goodput that the simulator promises with that profile, the
goodput that the server reaches over HTTP (99 % in time, SLO 25 ms), and what it keeps at twice that. Weights
are random: they take as long as trained ones. Needs torch, torchvision and a CUDA GPU.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from _shared import keep, parser, say
from load import Template
from peers.peer import Peer, Place, Settings
from search import Plan, goodput, usable

from run import cpu

COMMAND = [sys.executable, "-m", "astrarium"]
SLO_MS = 25.0
SIZES = (1, 4, 16, 64)
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
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
        self.words = torch.nn.Embedding(30522, 768)
        self.layers = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = torch.nn.Linear(768, 2)

    def forward(self, TOKENS):
        return self.head(self.layers(self.words(TOKENS))[:, 0])


def resnet50():
    torch.manual_seed(0)
    return Vision().eval()


def encoder():
    torch.manual_seed(0)
    return Encoder().eval()
'''


@dataclass(frozen=True)
class Model:
    name: str
    tensor: str
    datatype: str
    shape: tuple[int, ...]
    item_bytes: int
    guess: float  # requests/s, where the search begins


MODELS = (
    Model("encoder", "TOKENS", "INT64", (128,), 1024, 2000.0),
    Model("resnet50", "IMAGE", "UINT8", (3, 224, 224), 150_528, 1500.0),
)


class OnGpu(Peer):
    name = "astrarium"
    settings = (Settings(),)

    def __init__(self, model: Model, scenario: Path) -> None:
        self._model, self._scenario = model, scenario

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        ports = ["--http", str(place.port), "--grpc", str(place.grpc_port)]
        return [*COMMAND, "serve", str(self._scenario), *ports]

    def template(self) -> Template:
        model = self._model
        data = bytes(model.item_bytes)
        tensor = {"name": model.tensor, "datatype": model.datatype, "shape": [1, *model.shape]}
        head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}]}).encode()
        headers = {
            "Inference-Header-Content-Length": str(len(head)),
            "Content-Type": "application/octet-stream",
        }
        return Template(f"/v2/models/{model.name}/infer", head + data, headers)

    def variables(self, place: Place) -> dict[str, str]:
        """A GPU machine may have our packages on its path only, not installed."""
        return {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def versions(self) -> dict[str, str]:
        import torch

        return {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}


def written(folder: Path, model: Model, graphs: bool) -> Path:
    (folder / "models.py").write_text(CODE, encoding="utf-8")
    entry = {
        "profile": {"table": {1: "5ms", 64: "20ms"}},
        "slo": f"{SLO_MS:g}ms",
        "max_batch": max(SIZES),
        "backend": {"torch": {"model": f"models.py:{model.name}", "dtype": "fp16", "graphs": graphs}},
        "inputs": [{"name": model.tensor, "datatype": model.datatype, "shape": list(model.shape)}],
    }
    workload = {"arrivals": "poisson", "rate": "1000/s", "duration": "8s", "warmup": "1s"}
    scenario = {"cluster": {"gpus": 1}, "models": {model.name: entry}, "workload": workload}
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario, sort_keys=False), encoding="utf-8")
    return path


def measured(folder: Path, model: Model, graphs: bool, plan: Plan) -> dict[str, Any]:
    scenario = written(folder, model, graphs)
    profile = [*COMMAND, "profile", str(scenario), "--model", model.name, "--write"]
    subprocess.run(profile, check=True, stdout=sys.stderr)
    say("profiled")
    told = [*COMMAND, "goodput", str(scenario), "--json", "--no-folder", "--seeds", "1"]
    promise = json.loads(subprocess.run(told, check=True, stdout=subprocess.PIPE, text=True).stdout)
    say(f"promised {promise['goodput']:.0f} requests/s")
    peer = OnGpu(model, scenario)
    with peer.running(1, Settings()) as server:
        found = goodput(server, model.guess, plan)
        over = usable(server, 2 * found.median, plan, 9)
    table = yaml.safe_load(scenario.read_text())["models"][model.name]["profile"]["table"]
    return {
        "model": model.name,
        "graphs": graphs,
        "profile": table,
        "promised": promise["goodput"],
        "goodput": found.rates,
        "kept_at_twice": over.in_time_rate / found.median if found.median else 0.0,
        "versions": peer.versions(),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=6.0)
    options.add_argument("--repeats", type=int, default=2)
    given = options.parse_args()
    plan = Plan(seconds=given.seconds, repeats=given.repeats, slo_ms=SLO_MS)
    results = []
    for model, graphs in product(MODELS, (True, False)):
        with tempfile.TemporaryDirectory() as folder:
            results.append(measured(Path(folder), model, graphs, plan))
            say(json.dumps(results[-1]))
    path = keep("serving-gpu", {**circumstances(given.date), "results": results})
    print("model  graphs  l(1) l(4) l(16) l(64)  promised/s  goodput/s  kept at twice")
    for result in results:
        times = " ".join(str(result["profile"].get(size, "-")) for size in SIZES)
        served = " ".join(f"{rate:.0f}" for rate in result["goodput"])
        print(
            f"{result['graphs']}  {times}  {result['promised']:.0f}  {served}  {result['kept_at_twice']:.2f}"
        )
    print(path)


def circumstances(day: Any) -> dict[str, Any]:
    import torch

    return {
        "date": day.isoformat(),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(0),
    }


if __name__ == "__main__":
    main()
