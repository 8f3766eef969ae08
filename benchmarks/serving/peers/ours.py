"""Ours: `astrarium serve` with emulated GPUs. The scenario that is served is simulated too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from load import Template

import astrarium

from .peer import V2_BODY, Peer, Place, Settings

COMMAND = [sys.executable, "-m", "astrarium"]


class Ours(Peer):
    name = "astrarium"
    settings = (Settings(),)

    def __init__(
        self,
        policy: str = "astrarium",
        alpha: str = "1.053ms",
        beta: str = "5.072ms",
        slo: str = "25ms",
        models: int = 1,
        max_batch: int | None = None,
    ) -> None:
        self.policy = policy
        self.models = models
        self._model: dict[str, object] = {"profile": {"alpha": alpha, "beta": beta}, "slo": slo}
        if max_batch is not None:
            self._model["max_batch"] = max_batch
        if models > 1:
            self._model["copies"] = models

    def scenario(self, gpus: int, workload: Mapping[str, object] | None = None) -> str:
        """JSON, which is YAML too; the workload matters to the simulator only."""
        default = {"arrivals": "poisson", "rate": f"{300 * gpus}/s", "duration": "60s", "warmup": "2s"}
        return json.dumps(
            {
                "cluster": {"gpus": gpus},
                "models": {"resnet": self._model},
                "policy": {"name": self.policy},
                "workload": workload or default,
                "seed": 1,
            }
        )

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        path = place.folder / "scenario.yaml"
        path.write_text(self.scenario(gpus), encoding="utf-8")
        return [*COMMAND, "serve", str(path), "--http", str(place.port), "--grpc", str(place.grpc_port)]

    def template(self) -> Template:
        return self.templates()[0]

    def templates(self) -> tuple[Template, ...]:
        return tuple(Template(f"/v2/models/{name}/infer", V2_BODY) for name in self.model_names())

    def model_names(self) -> list[str]:
        return [f"resnet-{copy}" for copy in range(self.models)] if self.models > 1 else ["resnet"]

    def versions(self) -> dict[str, str]:
        others = {name: version(name) for name in ("uvicorn", "uvloop", "httptools")}
        return {"astrarium": astrarium.__version__, **others}

    def promised_goodput(self, gpus: int, folder: Path) -> float:
        """Return what the simulator says that the policy reaches with this many GPUs."""
        path = folder / f"promise-{gpus}.yaml"
        path.write_text(self.scenario(gpus), encoding="utf-8")
        command = [*COMMAND, "goodput", str(path), "--json", "--no-folder"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return float(json.loads(output)["goodput"])
