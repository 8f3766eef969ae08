"""The scenario file of models on the GPU, and what profiling and the simulator say of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from on_gpu.models import CODE, DIFFERENT, Model

COMMAND = [sys.executable, "-m", "astrarium"]
SLO_MS = 25.0
SIZES = (1, 4, 16, 64)
ZIPF = 1.0  # how unequal the rates of twelve models are


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


def profiled(scenario: Path, name: str, model: Model) -> dict[int, str]:
    data = scenario.with_name(f"{name}.npz")
    np.savez(data, **{model.tensor: np.stack([model.item(number) for number in range(DIFFERENT)])})
    command = [*COMMAND, "profile", str(scenario), "--model", name, "--data", str(data)]
    subprocess.run([*command, "--write", "--no-path"], check=True, stdout=sys.stderr)
    table: dict[int, str] = yaml.safe_load(scenario.read_text())["models"][name]["profile"]["table"]
    return table


def promise(scenario: Path) -> float:
    return float(output_of("goodput", str(scenario), "--seeds", "1")["promised"])


def simulated(scenario: Path, rate: float) -> float:
    """Return the share in time that the simulator says."""
    return float(output_of("simulate", str(scenario), "-o", f"workload.rate={rate}/s")["attainment"])


def output_of(*command: str) -> Any:
    whole = [*COMMAND, *command, "--json", "--no-folder"]
    return json.loads(subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True).stdout)
