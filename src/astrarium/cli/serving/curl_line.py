"""A line for curl asks a model that is served, to be pasted into another terminal."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from astrarium.server.running import RunningServer
    from astrarium.serving.live.tensors import TensorSpec
    from astrarium.serving.scenario.server_options import ServerOptions

MOST_NUMBERS = 64  # in a line; where a model takes more, they follow as bytes


class Example(NamedTuple):
    spec: TensorSpec
    shape: list[int]

    def described(self) -> dict[str, Any]:
        return {"name": self.spec.name, "datatype": self.spec.datatype, "shape": self.shape}

    @property
    def data(self) -> list[object]:
        low, high = self.spec.values or (1, 1)
        fill: object = {"BYTES": "hello", "BOOL": True}.get(self.spec.datatype, min(max(1, low), high))
        return [fill] * prod(self.shape)

    @property
    def may_be_zero(self) -> bool:
        low, high = self.spec.values or (0, 0)
        return self.spec.datatype != "BYTES" and low <= 0 <= high

    @property
    def size(self) -> int:
        from astrarium.serving.live.tensors import DATATYPES

        return prod(self.shape) * DATATYPES[self.spec.datatype].itemsize


def curl_line(running: RunningServer, address: str, options: ServerOptions) -> str:
    """Return a request for a model that is loaded, preferably a real one."""
    from astrarium.serving.live.backends import examples

    cards = [card for card in running.service.cards() if card.state == "READY"]
    card = next((card for card in cards if card.platform != "emulated"), cards[0])
    tensors = [Example(spec, [1, *examples.shape_of(spec, min)]) for spec in card.inputs]
    trust = f"--cacert {quote(options.tls.cert)} " if options.tls else ""
    key = '-H "Authorization: Bearer $KEY" ' if options.api_keys else ""
    curl = f"curl -s {trust}{key}{address}/v2/models/{quote(card.name)}/infer"
    is_long = sum(prod(tensor.shape) for tensor in tensors) > MOST_NUMBERS
    if is_long and all(tensor.may_be_zero for tensor in tensors):
        return _with_zeros(curl, tensors)
    body = _json([{**tensor.described(), "data": tensor.data} for tensor in tensors])
    return f"{curl} -d {quote(body.decode())}"


def _with_zeros(curl: str, tensors: Sequence[Example]) -> str:
    """Return a line whose tensors follow the JSON as bytes (the protocol's binary form), all of them zero."""
    inputs = [{**tensor.described(), "parameters": {"binary_data_size": tensor.size}} for tensor in tensors]
    head = _json(inputs)
    zeros = f"head -c {sum(tensor.size for tensor in tensors)} /dev/zero"
    length = f"-H 'Inference-Header-Content-Length: {len(head)}'"
    return f"(printf %s {quote(head.decode())}; {zeros}) | {curl} {length} --data-binary @-"


def _json(inputs: Sequence[dict[str, Any]]) -> bytes:
    import msgspec

    return msgspec.json.encode({"inputs": inputs})
