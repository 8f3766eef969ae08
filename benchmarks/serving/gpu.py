"""A real model on a real GPU: ResNet50 in half precision, with and without CUDA graphs.

    python benchmarks/serving/gpu.py

For each: what `astrarium profile` measures, the goodput that the simulator promises with that profile, the
goodput that the server reaches (99 % in time, SLO 25 ms, 150 kB images over HTTP), and what it keeps at twice
that. Weights are random: they take as long as trained ones. Needs torch, torchvision and a CUDA GPU.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
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
MODEL = '''
import torch
import torchvision


class Net(torch.nn.Module):
    """Takes bytes as they come from a decoder and normalizes them on the GPU."""

    def __init__(self):
        super().__init__()
        self.net = torchvision.models.resnet50().to(memory_format=torch.channels_last)

    def forward(self, IMAGE):
        image = (IMAGE.to(next(self.net.parameters()).dtype) - 118) / 58
        return self.net(image.to(memory_format=torch.channels_last))


def resnet50():
    torch.manual_seed(0)
    return Net().eval()
'''


class OnGpu(Peer):
    name = "astrarium"
    settings = (Settings(),)

    def __init__(self, scenario: Path) -> None:
        self._scenario = scenario

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        ports = ["--http", str(place.port), "--grpc", str(place.grpc_port)]
        return [*COMMAND, "serve", str(self._scenario), *ports]

    def template(self) -> Template:
        image = bytes(range(256)) * 588
        tensor = {"name": "IMAGE", "datatype": "UINT8", "shape": [1, 3, 224, 224]}
        head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(image)}}]}).encode()
        headers = {
            "Inference-Header-Content-Length": str(len(head)),
            "Content-Type": "application/octet-stream",
        }
        return Template("/v2/models/resnet50/infer", head + image, headers)

    def variables(self, place: Place) -> dict[str, str]:
        """A GPU machine may have our packages on its path only, not installed."""
        return {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def versions(self) -> dict[str, str]:
        import torch

        return {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}


def written(folder: Path, graphs: bool) -> Path:
    (folder / "resnet.py").write_text(MODEL, encoding="utf-8")
    model = {
        "profile": {"table": {1: "5ms", 64: "20ms"}},
        "slo": f"{SLO_MS:g}ms",
        "max_batch": max(SIZES),
        "backend": {"torch": {"model": "resnet.py:resnet50", "dtype": "fp16", "graphs": graphs}},
        "inputs": [{"name": "IMAGE", "datatype": "UINT8", "shape": [3, 224, 224]}],
    }
    workload = {"arrivals": "poisson", "rate": "1000/s", "duration": "40s", "warmup": "1s"}
    scenario = {"cluster": {"gpus": 1}, "models": {"resnet50": model}, "workload": workload}
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario, sort_keys=False), encoding="utf-8")
    return path


def measured(folder: Path, graphs: bool, plan: Plan, guess: float) -> dict[str, Any]:
    scenario = written(folder, graphs)
    profile = [*COMMAND, "profile", str(scenario), "--model", "resnet50", "--write"]
    subprocess.run(profile, check=True, stdout=sys.stderr)
    told = [*COMMAND, "goodput", str(scenario), "--json", "--no-folder"]
    promise = json.loads(subprocess.run(told, check=True, stdout=subprocess.PIPE, text=True).stdout)
    peer = OnGpu(scenario)
    with peer.running(1, Settings()) as server:
        found = goodput(server, guess, plan)
        over = usable(server, 2 * found.median, plan, 9)
    table = yaml.safe_load(scenario.read_text())["models"]["resnet50"]["profile"]["table"]
    return {
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
    for graphs, guess in ((True, 1500.0), (False, 800.0)):
        with tempfile.TemporaryDirectory() as folder:
            results.append(measured(Path(folder), graphs, plan, guess))
            say(json.dumps(results[-1]))
    path = keep("serving-gpu", {**circumstances(given.date), "results": results})
    print("graphs  l(1) ... l(64)  promised/s  goodput/s  kept at twice")
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
