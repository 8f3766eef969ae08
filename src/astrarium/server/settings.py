"""Settings of the protocols are decided by the serve command: addresses, limits, keys and certificates."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MIB = 1024 * 1024
# Bytes of a request or an answer: what is smaller takes Python less than 50 ms, were every byte an element.
# What is larger is read and written by native code and in a thread, and nothing but tensors may be.
LARGE = 256 * 1024


@dataclass(frozen=True)
class HttpLimits:
    """These limits bound what a client may ask, over HTTP and gRPC alike."""

    head_bytes: int = 64 * 1024  # of a request's first line and headers, about
    headers: int = 256  # of a request; those that clients and proxies send are a few dozen
    body_bytes: int = 64 * MIB  # of one request, after decompression too
    held_bytes: int = 1024 * MIB  # of all requests over HTTP that are being read or answered
    request_seconds: float = 60.0  # for a request over HTTP to arrive whole
    keep_alive_seconds: int = 75  # an idle connection is closed after this
    connections: int | None = None  # more get 503


@dataclass(frozen=True)
class Security:
    """Security is keys that clients must show (none: anyone may call) and our certificate (none: no TLS)."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    certificate: Path | None = None
    private_key: Path | None = None  # None: in the same file as the certificate


@dataclass(frozen=True)
class Address:
    """An address is where a protocol listens. Port 0 is any free one."""

    host: str = "127.0.0.1"
    port: int = 0
