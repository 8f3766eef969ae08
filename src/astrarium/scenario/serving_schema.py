"""What a scenario file may say for serving alone: the simulator ignores it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import Bytes, Duration, write_bytes, write_duration
from astrarium.core.units import SECOND

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Size = Annotated[int, msgspec.Meta(ge=-1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Waiting = Annotated[int, msgspec.Meta(ge=1)]
# As in engines.tensors, which would bring numpy along.
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "BYTES",
]  # fmt: skip
EMULATED = "emulated"
MODEL = "model"  # the option that a backend's short form sets


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a model: the shape of one item, without the batch; -1 is any size."""

    name: Name
    datatype: Datatype
    shape: tuple[Size, ...]

    def __post_init__(self) -> None:
        if 0 in self.shape:
            raise InputError("shape", list(self.shape), "sizes of at least 1, or -1 for any")


class BackendChoice(msgspec.Struct, frozen=True):
    """What runs the model; the options are the backend's own, file names absolute."""

    name: str = EMULATED
    options: dict[str, Any] = {}

    def plain(self) -> dict[str, Any]:
        short = self.options.keys() == {MODEL}
        return {self.name: self.options[MODEL] if short else dict(self.options)}


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files in PEM form: the certificate with its chain, and its private key."""

    cert: str
    key: str


class ServerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where and how a scenario is served. A port of 0 is any that is free; `grpc: null` is no gRPC."""

    http: Port = 8000
    grpc: Port | None = 8001
    host: Name = "127.0.0.1"
    queue: Waiting = 10_000  # the most requests that may wait
    payload: Bytes = Bytes(64 * 2**20)  # the largest body of a request
    memory: Bytes = Bytes(256 * 2**20)  # shared with the workers, for all requests at once
    api_keys: str | None = None  # a file with one key on each line
    tls: Tls | None = None
    record: str | None = None  # a file for the recording that can be replayed
    log: Literal["text", "json"] = "text"
    start_limit: Duration = Duration(120 * SECOND)  # for the workers to come up with their models
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where real models run; auto: on CUDA if there is any

    def __post_init__(self) -> None:
        if self.grpc and self.grpc == self.http:
            raise InputError("grpc", self.grpc, "another port than that of http")
        if self.payload < 1:
            raise InputError("payload", write_bytes(self.payload), "a size above 0")
        if self.start_limit < 1:
            raise InputError("start_limit", write_duration(self.start_limit), "a time above 0")
        if self.memory < self.payload:
            expected = f"at least {write_bytes(self.payload)}, the largest payload"
            raise InputError("memory", write_bytes(self.memory), expected)


def check_names(tensors: tuple[TensorEntry, ...]) -> None:
    names = [tensor.name for tensor in tensors]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InputError(f"[{place}].name", name, f"a name of its own, not {one_of(names[:place])}")
