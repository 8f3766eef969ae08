"""What is measured: a model, twelve of them, another server with one of them, or single rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from _shared import say
from load import offer
from peers.peer import Settings
from search import Plan

from on_gpu.load_on_server import once, served
from on_gpu.models import MODELS, Model
from on_gpu.others import LitServe, TritonGraphed
from on_gpu.scenario import ZIPF, profiled, promise, written
from on_gpu.servers import OnGpu
from on_gpu.token_models import TokenModel

GUESS = 2000.0  # requests/s, where the search for a peer's goodput begins


def measured(folder: Path, model: Model, graphs: bool, policy: str, plan: Plan) -> dict[str, Any]:
    models = {model.name: (model, 1.0)}
    scenario = written(folder, models, graphs, policy)
    table = profiled(scenario, model.name, model)
    promised = promise(scenario)
    say(f"{model.name} profiled; promised {promised:.0f} requests/s")
    facts: dict[str, Any] = {"model": model.name, "requests": model.name, "graphs": graphs}
    facts |= {"policy": policy or "default", "profile": table}
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


def beside(
    folder: Path, plan: Plan, peer: type[LitServe | TritonGraphed], model: TokenModel, settings: Settings
) -> dict[str, Any]:
    facts = {"model": model.name, "requests": model.name, "server": f"{peer.name}, {settings}"}
    return {**facts, **served(peer(folder, model), GUESS, plan, settings)}


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
