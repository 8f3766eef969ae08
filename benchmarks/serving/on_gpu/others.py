"""LitServe and Triton with models of gpu.py, as somebody who knows these servers would set them up.

Both run in our own Python, which has torch. LitServe must be importable there; PyTriton's wheel need not be,
since it has an environment of its own.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from load import Template
from peers.peer import APPS, Peer, Place, Settings
from peers.triton import Triton

from on_gpu.token_models import TokenModel


class LitServe(Peer):
    name = "litserve"

    def __init__(self, folder: Path, model: TokenModel) -> None:
        self._folder = folder
        self._model = model

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        self._model.written(self._folder, settings)
        options = [f"--port={place.port}", f"--max-batch={settings.max_batch}", "--api-servers=4"]
        options += [f"--delay-s={settings.delay_ms / 1000}", f"--workers={settings.instances}"]
        return [sys.executable, str(APPS / "litserve_graphed.py"), *options, f"--folder={self._folder}"]

    def template(self) -> Template:
        return self.templates()[0]

    def templates(self) -> tuple[Template, ...]:
        return self._model.in_json()

    def versions(self) -> dict[str, str]:
        return {"litserve": version("litserve")}


class TritonGraphed(Triton):
    """Triton's Python backend, with the requests that ours gets; it batches unequal lengths as they come."""

    http_threads = 8

    def __init__(self, folder: Path, model: TokenModel) -> None:
        self._folder = folder
        self._served = model
        self.model = model.name
        ragged = " allow_ragged_batch: true" if model.dimension < 0 else ""
        self.tensors = f"""\
input [{{ name: "TOKENS" data_type: TYPE_INT64 dims: [ {model.dimension} ]{ragged} }}]
output [{{ name: "OUTPUT" data_type: TYPE_FP16 dims: [ 2 ] }}]"""

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        written = self._served.written(self._folder, settings)
        self.files = (APPS / "triton_graphed" / "model.py", APPS / "graphed_model.py", *written)
        return super().command(place, gpus, settings)

    @property
    def python(self) -> str:
        return sys.executable

    def template(self) -> Template:
        return self.templates()[0]

    def templates(self) -> tuple[Template, ...]:
        return self._served.in_binary()


PEERS: dict[str, type[LitServe | TritonGraphed]] = {"litserve": LitServe, "triton": TritonGraphed}
