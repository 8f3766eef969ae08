"""The `server` section: where and how a scenario is served. The simulator ignores it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import (
    SECOND,
    Bytes,
    Duration,
    write_bytes,
    write_duration,
)
from astrarium.serving.scenario.tensor_entries import Name

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
QueueLength = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS needs two files in PEM form: the certificate with its chain, and its private key."""

    cert: str
    key: str


class ServerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where and how a scenario is served. A port of 0 is any that is free; `grpc: null` is no gRPC."""

    http: Port = 8000
    grpc: Port | None = 8001
    host: Name = "127.0.0.1"
    queue: QueueLength = 10_000  # the most requests that may wait
    payload: Bytes = Bytes(64 * 2**20)  # the largest body of a request
    memory: Bytes = Bytes(256 * 2**20)  # shared with the workers, for all requests at once
    shared_memory: Bytes = Bytes(0)  # of clients on this machine, that they may register; 0: none
    shared_memory_clients: Literal["local", "any"] = "local"  # local: over loopback, each user its own
    api_keys: str | None = None  # a file with one key on each line
    tls: Tls | None = None
    record: str | None = None  # a file for the recording that can be replayed
    log: Literal["text", "json"] = "text"
    start_limit: Duration = Duration(120 * SECOND)  # for the workers to come up with their models
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where real models run; auto: on CUDA if there is any
    threads: Count | None = None  # that read calls on the native path; one for every two cores, eight at most
    path: Literal["auto", "native", "python"] = "auto"  # of calls; auto: native where that is possible
    reserve: bool = True  # a process that is ready to take the place of a worker that died

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
