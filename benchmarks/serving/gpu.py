"""Real models on a real GPU: ResNet50 on images of 150 kB, and an encoder of the size of BERT-base on 128
tokens (1 kB), both in half precision with CUDA graphs, everything else as a user gets it without tuning.

    python benchmarks/serving/gpu.py --litserve

For each: what `astrarium profile` measures, the goodput that the simulator promises with that profile,
latency while it is quiet, the share in time (SLO 25 ms) at rates up to 16,000 requests/s, the goodput over
HTTP (99 % in time) and what is kept of it at twice the rate; LitServe's encoder beside it. Weights are
random: they take as long as trained ones. Needs torch, torchvision and a CUDA GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from _shared import keep, parser, say
from load import Result, Template, offer
from peers.peer import APPS, Peer, Place, Running, Settings, until_quiet
from search import Plan, goodput, usable

from run import cpu

COMMAND = [sys.executable, "-m", "astrarium"]
SLO_MS = 25.0
SIZES = (1, 4, 16, 64)
QUIET = 200.0  # requests/s
RATES = (1000.0, 2000.0, 4000.0, 8000.0, 12_000.0, 16_000.0)
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
    Model("encoder", "TOKENS", "INT64", (128,), 1024, 8000.0),
    Model("resnet50", "IMAGE", "UINT8", (3, 224, 224), 150_528, 4000.0),
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


class LitServe(Peer):
    """LitServe with the same encoder, as somebody who knows it would set it up."""

    name = "litserve"
    settings = (Settings(max(SIZES), 2.0),)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        (self._folder / "models.py").write_text(CODE, encoding="utf-8")
        options = [f"--port={place.port}", f"--max-batch={settings.max_batch}", "--api-servers=4"]
        options += [f"--delay-s={settings.delay_ms / 1000}", f"--models={self._folder}"]
        return [sys.executable, str(APPS / "litserve_encoder.py"), *options]

    def template(self) -> Template:
        return Template("/predict", json.dumps({"tokens": [0] * 128}).encode())

    def variables(self, place: Place) -> dict[str, str]:
        return {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def versions(self) -> dict[str, str]:
        return {"litserve": version("litserve")}


def written(folder: Path, model: Model, graphs: bool, policy: str) -> Path:
    (folder / "models.py").write_text(CODE, encoding="utf-8")
    entry = {
        "profile": {"table": {1: "5ms", 64: "20ms"}},
        "slo": f"{SLO_MS:g}ms",
        "max_batch": max(SIZES),
        "backend": {"torch": {"model": f"models.py:{model.name}", "dtype": "fp16", "graphs": graphs}},
        "inputs": [{"name": model.tensor, "datatype": model.datatype, "shape": list(model.shape)}],
    }
    workload = {"arrivals": "poisson", "rate": "1000/s", "duration": "8s", "warmup": "1s"}
    scenario: dict[str, Any] = {
        "cluster": {"gpus": 1},
        "models": {model.name: entry},
        "workload": workload,
    }
    if policy:
        scenario["policy"] = {"name": policy}
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario, sort_keys=False), encoding="utf-8")
    return path


def measured(folder: Path, model: Model, graphs: bool, policy: str, plan: Plan) -> dict[str, Any]:
    scenario = written(folder, model, graphs, policy)
    profile = [*COMMAND, "profile", str(scenario), "--model", model.name, "--write"]
    subprocess.run(profile, check=True, stdout=sys.stderr)
    told = [*COMMAND, "goodput", str(scenario), "--json", "--no-folder", "--seeds", "1"]
    promise = json.loads(subprocess.run(told, check=True, stdout=subprocess.PIPE, text=True).stdout)
    say(f"{model.name} profiled; promised {promise['goodput']:.0f} requests/s")
    table = yaml.safe_load(scenario.read_text())["models"][model.name]["profile"]["table"]
    peer = OnGpu(model, scenario)
    facts = {"model": model.name, "graphs": graphs, "policy": policy or "default", "profile": table}
    found = {**facts, "promised": promise["goodput"], **served(peer, model.guess, plan)}
    say(f"{model.name}: long way {found['long_way']}, collections {found['collections']}")
    return found


def served(peer: Peer, guess: float, plan: Plan) -> dict[str, Any]:
    """What one server does: quiet, at each rate, at its goodput and at twice that."""
    with peer.running(1, peer.settings[0]) as server:
        offer(server.url, server.templates, 500.0, 2.0, plan.slo_ms)  # everything has been touched once
        quiet = usable(server, QUIET, plan, 5)
        runs = [once(server, rate, plan) for rate in RATES] if isinstance(peer, OnGpu) else []
        for run, cpu in ((quiet, 0.0), *runs):
            say(f"{peer.name} {line(run)}, CPU of a request {cpu:.0f} us")
        found = goodput(server, guess, plan)
        over = usable(server, 2 * found.median, plan, 9)
        say(f"{peer.name} goodput {found.rates}, twice that: {line(over)}")
        counted = counters(server) if isinstance(peer, OnGpu) else {}
    return {
        "quiet": spread(quiet),
        "rates": {f"{run.rate:g}": {**spread(run), "cpu_us": cpu} for run, cpu in runs},
        "goodput": found.rates,
        "kept_at_twice": over.in_time_rate / found.median if found.median else 0.0,
        "versions": peer.versions(),
        **counted,
    }


def once(server: Running, rate: float, plan: Plan) -> tuple[Result, float]:
    """A rate that may be beyond what the generator can offer: its lag is told beside the result. And the CPU
    time of all of the server's processes for a request, in microseconds."""
    until_quiet(server)
    before, lost = server.tree.cpu_s(), stolen()
    run = offer(server.url, server.templates, rate, plan.seconds, plan.slo_ms, 7, plan.warmup)
    say(f"stolen from this machine meanwhile: {stolen() - lost:.2f} s of CPU time")
    requests = run.rate * (plan.seconds + plan.warmup)
    return run, 1e6 * (server.tree.cpu_s() - before) / requests


def stolen() -> float:
    """Seconds of CPU time that this machine wanted and its host did not give it, so far."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def line(run: Result) -> str:
    took, lag = run.latency_ms, run.lag_ms
    return (
        f"{run.rate:.0f}/s: {run.in_time_share:.4f} in time, p50 {took.p50:.2f} p90 {took.p90:.2f} "
        f"p99 {took.p99:.2f} max {took.max:.1f} ms, refused {run.refused}, late {run.late}, "
        f"lag p99 {lag.p99:.2f} max {lag.max:.1f} ms"
    )


def spread(run: Result) -> dict[str, float]:
    took = run.latency_ms
    return {"in_time": run.in_time_share, "p50": took.p50, "p90": took.p90, "p99": took.p99, "max": took.max}


def counters(server: Running) -> dict[str, Any]:
    """What the server itself says of its ways and of its garbage collector."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    labelled = re.compile(r'astrarium_(long_way|collections)_total\{\w+="(.*)"\} (.*)')
    matches = [match for text in lines if (match := labelled.match(text))]
    return {
        name: {match[2]: float(match[3]) for match in matches if match[1] == name}
        for name in ("long_way", "collections")
    }


def main() -> None:
    given = arguments()
    plan = Plan(seconds=given.seconds, repeats=given.repeats, slo_ms=SLO_MS, tolerance=0.04)
    results: list[dict[str, Any]] = []
    chosen = [model for model in MODELS if model.name in given.models]
    for model, graphs, policy in product(chosen, given.graphs, given.policies):
        with tempfile.TemporaryDirectory() as folder:
            results.append(measured(Path(folder), model, graphs == "graphs", policy, plan))
            say(json.dumps(results[-1]))
    peers = []
    if given.litserve:
        with tempfile.TemporaryDirectory() as folder:
            facts = {"model": "encoder", "server": "litserve, four API servers, batches of up to 64, 2 ms"}
            peers.append({**facts, **served(LitServe(Path(folder)), 2000.0, plan)})
    path = keep("serving-gpu", {**circumstances(given.date), "results": results, "peers": peers})
    show(results, peers)
    print(path)


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=5.0, help="of each run, 5 unless given")
    options.add_argument("--repeats", type=int, default=1, help="of the search for goodput, 1 unless given")
    names = [model.name for model in MODELS]
    options.add_argument("--models", nargs="+", default=names, choices=names, help="both unless given")
    options.add_argument(
        "--graphs", nargs="+", default=["graphs"], choices=["graphs", "eager"], help="with or without them"
    )
    options.add_argument("--policies", nargs="+", default=[""], help="the default one unless given")
    options.add_argument("--litserve", action="store_true", help="beside it (it must be installed)")
    return options.parse_args()


def show(results: list[dict[str, Any]], peers: list[dict[str, Any]]) -> None:
    rates = " | ".join(f"{rate:.0f}/s" for rate in RATES)
    print(f"| in time | {rates} |\n| --- |{' --- |' * len(RATES)}")
    for result in results:
        shares = " | ".join(f"{run['in_time']:.3f}" for run in result["rates"].values())
        print(f"| {title(result)} | {shares} |")
    print(
        "\n| | l(1), l(64) | promised/s | goodput/s | of it at twice that | p50 at 200/s | p99 at 4000/s |"
        "\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for result in [*results, *peers]:
        times = f"{result['profile'][1]}, {result['profile'][64]}" if "profile" in result else ""
        promised = f"{result['promised']:.0f}" if "promised" in result else ""
        rates_found = " ".join(f"{rate:.0f}" for rate in result["goodput"])
        tail = f"{result['rates']['4000']['p99']:.1f} ms" if result["rates"] else ""
        cells = [title(result), times, promised, rates_found, f"{result['kept_at_twice']:.2f}"]
        cells += [f"{result['quiet']['p50']:.2f} ms", tail]
        print(f"| {' | '.join(cells)} |")


def title(result: dict[str, Any]) -> str:
    if "server" in result:
        return f"{result['model']}, {result['server']}"
    graphs = "" if result["graphs"] else ", no graphs"
    policy = "" if result["policy"] == "default" else f", {result['policy']}"
    return f"{result['model']}{graphs}{policy}"


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
