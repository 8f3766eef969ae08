"""Who serves the models: our server, and LitServe and Triton with the same encoder."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from load import Template
from peers.peer import APPS, Peer, Place, Settings
from peers.triton import Triton

from on_gpu.models import CODE, DIFFERENT, MODELS, Model, requests
from on_gpu.scenario import COMMAND, SIZES


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


PEERS: dict[str, type[LitServe | TritonEncoder]] = {"litserve": LitServe, "triton": TritonEncoder}
