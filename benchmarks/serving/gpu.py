"""Real models on a real GPU: ResNet50 on images of 150 kB, and an encoder of the size of BERT-base on 128
tokens (1 kB), both in half precision with CUDA graphs, everything else as a user gets it without tuning.

    python benchmarks/serving/gpu.py --beside litserve triton
    python benchmarks/serving/gpu.py --models --twelve

For each: what `astrarium profile` measures, the goodput that the simulator promises with that profile,
latency while it is quiet, the goodput over HTTP (SLO 25 ms, 99 % in time), and at that goodput how busy the
GPU is; the share in time at half, .8 and all of it, beside what the simulator says; what is kept of it at two
and three times the rate. Twelve models, six of each kind, share the GPU by Zipf's law. LitServe's and
Triton's encoder run beside ours. Weights, tokens and images are random: a GPU is faster at zeros. Needs
torch, torchvision and a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from _shared import keep, parser, say
from load import Result, Template, offer
from peers.peer import APPS, Peer, Place, Running, Settings, until_quiet
from peers.triton import Triton
from search import Plan, goodput, usable

from astrarium.serving.live.tensors import DATATYPES
from run import cpu

Measure = Callable[[Path], dict[str, Any]]  # in a folder of its own

COMMAND = [sys.executable, "-m", "astrarium"]
SLO_MS = 25.0
SIZES = (1, 4, 16, 64)
QUIET = 200.0  # requests/s
SHARES = (0.5, 0.8, 1.0)  # of the goodput: where simulated and live are held against each other
TIMES = (2.0, 3.0)  # of the goodput: overload
ZIPF = 1.0  # how unequal the rates of twelve models are
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


class OnGpu(Peer):
    name = "astrarium"
    settings = (Settings(),)

    def __init__(self, models: Mapping[str, tuple[Model, float]], scenario: Path) -> None:
        self._models = models
        self.scenario = scenario

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        ports = ["--http", str(place.port), "--grpc", str(place.grpc_port)]
        return [*COMMAND, "serve", str(self.scenario), *ports]

    def template(self) -> Template:
        return self.templates()[0]

    def templates(self) -> tuple[Template, ...]:
        several = (requests(name, model, weight) for name, (model, weight) in self._models.items())
        return tuple(chain.from_iterable(several))

    def versions(self) -> dict[str, str]:
        import torch

        return {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}


def requests(name: str, model: Model, weight: float = 1.0) -> tuple[Template, ...]:
    return tuple(request(name, model, number, weight / DIFFERENT) for number in range(DIFFERENT))


def request(name: str, model: Model, number: int, weight: float) -> Template:
    data = model.item(number).tobytes()
    tensor = {"name": model.tensor, "datatype": model.datatype, "shape": [1, *model.shape]}
    inputs = [{**tensor, "parameters": {"binary_data_size": len(data)}}]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return Template(f"/v2/models/{name}/infer", head + data, headers, weight)


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
        return self.templates()[0]

    def templates(self) -> tuple[Template, ...]:
        items = (MODELS[0].item(number).tolist() for number in range(DIFFERENT))
        return tuple(Template("/predict", json.dumps({"tokens": tokens}).encode()) for tokens in items)

    def versions(self) -> dict[str, str]:
        return {"litserve": version("litserve")}


class TritonEncoder(Triton):
    """Triton's Python backend with the same encoder and the same requests as ours."""

    name = "triton"
    settings = (Settings(max(SIZES), 0.0),)
    http_threads = 8
    model = "encoder"
    tensors = """\
input [{ name: "TOKENS" data_type: TYPE_INT64 dims: [ 128 ] }]
output [{ name: "OUTPUT" data_type: TYPE_FP16 dims: [ 2 ] }]"""

    def __init__(self, folder: Path) -> None:
        (folder / "models.py").write_text(CODE, encoding="utf-8")
        own = (APPS / "triton_encoder" / "model.py", APPS / "graphed_encoder.py")
        self.files = (*own, folder / "models.py")

    def template(self) -> Template:
        return self.templates()[0]

    def templates(self) -> tuple[Template, ...]:
        return requests(self.model, MODELS[0])


def written(folder: Path, models: Mapping[str, tuple[Model, float]], graphs: bool, policy: str) -> Path:
    (folder / "models.py").write_text(CODE, encoding="utf-8")
    workload: dict[str, Any] = {"arrivals": "poisson", "rate": "1000/s", "duration": "8s", "warmup": "1s"}
    if len(models) > 1:
        workload["popularity"] = {"zipf": ZIPF}
    scenario: dict[str, Any] = {
        "cluster": {"gpus": 1},
        "models": {name: entry(model, graphs) for name, (model, _) in models.items()},
        "workload": workload,
        "server": {"start_limit": "300s"},
    }
    if policy:
        scenario["policy"] = {"name": policy}
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario, sort_keys=False), encoding="utf-8")
    return path


def entry(model: Model, graphs: bool) -> dict[str, Any]:
    return {
        "profile": {"table": {1: "5ms", 64: "20ms"}},
        "slo": f"{SLO_MS:g}ms",
        "max_batch": max(SIZES),
        "backend": {"torch": {"model": f"models.py:{model.name}", "dtype": "fp16", "graphs": graphs}},
        "inputs": [{"name": model.tensor, "datatype": model.datatype, "shape": list(model.shape)}],
    }


def measured(folder: Path, model: Model, graphs: bool, policy: str, plan: Plan) -> dict[str, Any]:
    models = {model.name: (model, 1.0)}
    scenario = written(folder, models, graphs, policy)
    table = profiled(scenario, model.name, model)
    promised = promise(scenario)
    say(f"{model.name} profiled; promised {promised:.0f} requests/s")
    facts = {"model": model.name, "graphs": graphs, "policy": policy or "default", "profile": table}
    result = {**facts, "promised": promised, **served(OnGpu(models, scenario), 0.9 * promised, plan)}
    say(f"{model.name}: long way {result['long_way']}, collections {result['collections']}")
    return result


def twelve(folder: Path, plan: Plan) -> dict[str, Any]:
    """Six models of each kind in turn; the k-th most wanted is asked for 1/k as often as the first."""
    models = {f"{MODELS[k % 2].name}{k // 2}": (MODELS[k % 2], 1 / (k + 1) ** ZIPF) for k in range(12)}
    scenario = written(folder, models, True, "")
    tables = {model.name: profiled(scenario, f"{model.name}0", model) for model in MODELS}
    document = yaml.safe_load(scenario.read_text())
    for name, (model, _) in models.items():
        document["models"][name]["profile"]["table"] = tables[model.name]
    scenario.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    promised = promise(scenario)
    say(f"twelve models; promised {promised:.0f} requests/s")
    facts = {"model": "six of each, Zipf", "graphs": True, "policy": "default", "promised": promised}
    return {**facts, **served(OnGpu(models, scenario), 0.85 * promised, plan)}


def profiled(scenario: Path, name: str, model: Model) -> dict[int, str]:
    data = scenario.with_name(f"{name}.npz")
    np.savez(data, **{model.tensor: np.stack([model.item(number) for number in range(DIFFERENT)])})
    command = [*COMMAND, "profile", str(scenario), "--model", name, "--write", "--data", str(data)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    table: dict[int, str] = yaml.safe_load(scenario.read_text())["models"][name]["profile"]["table"]
    return table


def promise(scenario: Path) -> float:
    return float(output_of("goodput", str(scenario), "--seeds", "1")["goodput"])


def simulated(scenario: Path, rate: float) -> float:
    """Return the share in time that the simulator says."""
    return float(output_of("simulate", str(scenario), "-o", f"workload.rate={rate}/s")["attainment"])


def output_of(*command: str) -> Any:
    whole = [*COMMAND, *command, "--json", "--no-folder"]
    return json.loads(subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True).stdout)


def at_rates(folder: Path, model: Model, rates: Sequence[float], plan: Plan) -> None:
    """Say what comes of single rates, without a search for the goodput."""
    models = {model.name: (model, 1.0)}
    scenario = written(folder, models, True, "")
    print(f"{model.name}: profile {profiled(scenario, model.name, model)}, promised {promise(scenario):.0f}")
    peer = OnGpu(models, scenario)
    with peer.running(1, peer.settings[0]) as server:
        offer(server.url, server.templates, 500.0, 2.0, plan.slo_ms)
        print("\n| requests/s | in time | p50 ms | p99 ms | GPU busy |\n| --- | --- | --- | --- | --- |")
        for rate in rates:
            run = once(server, rate, plan)
            shown = run["in_time"], run["p50"], run["p99"], run["gpu_busy"]
            print(f"| {rate:g} | {' | '.join(f'{value:.3f}' for value in shown)} |", flush=True)


def served(peer: Peer, guess: float, plan: Plan, settings: Settings | None = None) -> dict[str, Any]:
    """What one server does: quiet, at its goodput, below it and beyond."""
    with peer.running(1, settings or peer.settings[0]) as server:
        offer(server.url, server.templates, 500.0, 2.0, plan.slo_ms)  # everything has been touched once
        quiet = usable(server, QUIET, plan, 5)
        say(f"{peer.name} {summary(quiet)}")
        reach = goodput(server, guess, plan)
        say(f"{peer.name} goodput {reach.rates}")
        runs = {share: once(server, share * reach.median, plan) for share in (*SHARES, *TIMES)}
        counted = counters(server) if isinstance(peer, OnGpu) else {}
    return {
        "quiet": spread(quiet),
        "goodput": reach.rates,
        "runs": runs,
        "kept": {share: runs[share]["in_time_rate"] / reach.median for share in TIMES},
        "simulated": {
            share: simulated(peer.scenario, share * reach.median)
            for share in SHARES
            if isinstance(peer, OnGpu)
        },
        "versions": peer.versions(),
        **counted,
    }


def once(server: Running, rate: float, plan: Plan) -> dict[str, float]:
    """One rate, with the CPU time of a request in all of the server's processes, and how busy the GPU was."""
    until_quiet(server)
    before = server.tree.cpu_s()
    lost = stolen()
    with GpuWatch() as watch:
        run = offer(server.url, server.templates, rate, plan.seconds, plan.slo_ms, 7, plan.warmup)
    cpu = 1e6 * (server.tree.cpu_s() - before) / (run.rate * (plan.seconds + plan.warmup))
    say(f"{summary(run)}; CPU {cpu:.0f} us, GPU busy {watch.busy:.2f}, stolen {stolen() - lost:.2f} s")
    facts = {"in_time_rate": run.in_time_rate, "cpu_us": cpu, "gpu_busy": watch.busy}
    return {**spread(run), **facts}


class GpuWatch:
    """Asks the driver ten times a second for the share of time in which a kernel ran, without the ends."""

    def __enter__(self) -> GpuWatch:
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
        self._asking = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._asking.terminate()
        output, _ = self._asking.communicate()
        shares = [int(text) / 100 for text in output.split() if text.isdigit()]
        middle = shares[len(shares) // 4 : -max(1, len(shares) // 8)]
        self.busy = sum(middle) / len(middle) if middle else math.nan


def stolen() -> float:
    """Seconds of CPU time that this machine wanted and its host did not give it, so far."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def summary(run: Result) -> str:
    took = run.latency_ms
    lag = run.lag_ms
    return (
        f"{run.rate:.0f}/s: {run.in_time_share:.4f} in time, p50 {took.p50:.2f} p90 {took.p90:.2f} "
        f"p99 {took.p99:.2f} max {took.max:.1f} ms, refused {run.refused}, late {run.late}, "
        f"lag p99 {lag.p99:.2f} max {lag.max:.1f} ms, generator busy {run.busiest:.2f}"
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
    options = arguments()
    plan = Plan(seconds=options.seconds, repeats=options.repeats, slo_ms=SLO_MS, tolerance=0.03)
    results: list[dict[str, Any]] = []
    chosen = [model for model in MODELS if model.name in options.models]
    if options.rates:
        for model in chosen:
            with tempfile.TemporaryDirectory() as folder:
                at_rates(Path(folder), model, options.rates, plan)
        return
    for measure in plans(options, chosen, plan):
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(Path(folder)))
        path = keep("serving-gpu" + options.suffix, {**circumstances(options.date), "results": results})
    show(results)
    print(path)


def plans(options: argparse.Namespace, chosen: Sequence[Model], plan: Plan) -> list[Measure]:
    measures: list[Measure] = [
        partial(measured, model=model, graphs=graphs == "graphs", policy=policy, plan=plan)
        for model, graphs, policy in product(chosen, options.graphs, options.policies)
    ]
    for peer in (PEERS[name] for name in options.beside):
        measures += [partial(beside, plan=plan, peer=peer, settings=settings) for settings in peer.settings]
    return measures + [partial(twelve, plan=plan)] * options.twelve


PEERS: dict[str, type[LitServe | TritonEncoder]] = {"litserve": LitServe, "triton": TritonEncoder}
GUESS = 2000.0  # requests/s, where the search for a peer's goodput begins


def beside(
    folder: Path, plan: Plan, peer: type[LitServe | TritonEncoder], settings: Settings
) -> dict[str, Any]:
    facts = {"model": "encoder", "server": f"{peer.name}, {settings}"}
    return {**facts, **served(peer(folder), GUESS, plan, settings)}


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=5.0, help="of each run, 5 unless given")
    options.add_argument("--repeats", type=int, default=1, help="of the search for goodput, 1 unless given")
    names = [model.name for model in MODELS]
    options.add_argument("--models", nargs="*", default=names, choices=names, help="both unless given")
    options.add_argument("--rates", nargs="+", type=float, help="only these, without a search")
    options.add_argument("--twelve", action="store_true", help="twelve models on the GPU, too")
    options.add_argument("--suffix", default="", help="of the name of the results")
    options.add_argument(
        "--graphs", nargs="+", default=["graphs"], choices=["graphs", "eager"], help="with or without them"
    )
    options.add_argument("--policies", nargs="+", default=[""], help="the default one unless given")
    options.add_argument("--beside", nargs="+", default=[], choices=PEERS, help="they must be installed")
    return options.parse_args()


def show(results: list[dict[str, Any]]) -> None:
    columns = (
        "l(1), l(64)",
        "promised/s",
        "goodput/s",
        "GPU busy",
        "p50 at 200/s",
        "p99 at half",
        "kept at 2x, 3x",
        "in time at .5, .8, 1: live",
        "simulated",
        "CPU us",
    )
    print(f"| | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
    for result in results:
        print(f"| {title(result)} | {' | '.join(cells(result))} |")


def cells(result: dict[str, Any]) -> list[str]:
    runs = result["runs"]
    simulated = result["simulated"]
    profile = result.get("profile")
    return [
        f"{profile[1]}, {profile[64]}" if profile else "",
        f"{result['promised']:.0f}" if "promised" in result else "",
        " ".join(f"{rate:.0f}" for rate in result["goodput"]),
        f"{runs[1.0]['gpu_busy']:.2f}",
        f"{result['quiet']['p50']:.2f} ms",
        f"{runs[0.5]['p99']:.2f} ms",
        ", ".join(f"{kept:.2f}" for kept in result["kept"].values()),
        ", ".join(f"{runs[share]['in_time']:.3f}" for share in SHARES),
        ", ".join(f"{simulated[share]:.3f}" for share in SHARES if share in simulated),
        f"{runs[1.0]['cpu_us']:.0f}",
    ]


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
