"""Our server with models on a GPU."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from load import Template
from peers.peer import Peer, Place, Settings

from on_gpu.models import Model, requests
from on_gpu.scenario import COMMAND


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
