"""Our server with models that give back their inputs, and with a key where it has one."""

from __future__ import annotations

from typing import Any

import msgspec
from load import Template
from peers.ours import COMMAND
from peers.peer import Peer, Place, Settings

from http_features.requests import NUMBERS, body, json_input


def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def model(*kinds: tuple[str, int]) -> dict[str, Any]:
    """A model with an input and an output of each kind: a datatype and a length."""
    inputs = [tensor(f"IN{at}", datatype, size) for at, (datatype, size) in enumerate(kinds)]
    outputs = [tensor(f"OUT{at}", datatype, size) for at, (datatype, size) in enumerate(kinds)]
    profile = {"alpha": "0.001ms", "beta": "0.001ms"}
    return {"profile": profile, "slo": "10s", "max_batch": 16, "inputs": inputs, "outputs": outputs}


MODELS = {
    "plain": model(("FP32", 64)),
    "half": model(("FP16", 64)),
    "brain": model(("BF16", 64)),
    "text": model(("BYTES", 8)),
    "many": model(*[("FP32", 16)] * 4),
    "open": model(("FP32", -1)),
    "sums": model(("FP32", -1)) | {"outputs": [tensor("OUT0", "FP32", 1)]},
    "levels": model(("FP32", 64)) | {"priorities": {1: "5s", 2: "10s"}},
}


class Server(Peer):
    """Our server with these models, and with a key where it has one."""

    name = "astrarium"

    def __init__(self, key: str = "") -> None:
        self._key = key

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        path = place.folder / "scenario.yaml"
        keys = place.folder / "keys"
        keys.write_text(self._key + "\n", encoding="utf-8")
        server = {"payload": "64MiB"} | ({"api_keys": str(keys)} if self._key else {})
        document = {
            "cluster": {"gpus": gpus},
            "models": MODELS,
            "policy": {"name": "eager"},
            "server": server,
        }
        path.write_bytes(msgspec.yaml.encode(document))
        return [*COMMAND, "serve", str(path), "--http", str(place.port), "--grpc", str(place.grpc_port)]

    def template(self) -> Template:
        headers = {"X-API-Key": self._key} if self._key else {}
        return Template("/v2/models/plain/infer", body([json_input("IN0", "FP32", NUMBERS)]), headers)
