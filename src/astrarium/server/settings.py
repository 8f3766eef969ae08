"""Settings of the protocols are decided by the serve command: addresses, limits, keys and certificates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from astrarium.core.errors import InputError
from astrarium.server.contract import Kind, Refused

# API keys: who may call. A comparison takes the same time whether or not, and where, a key differs.


class Keys:
    """Keys open a server to callers; an empty set is an open server."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [sha256(_checked(key).encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Refused unless these headers (or metadata, names in lower case) show a known key."""
        if self._digests and not self._known(shown_key(headers)):
            expected = "'Authorization: Bearer KEY' or 'x-api-key: KEY' with a key that this server knows"
            raise Refused(Kind.UNAUTHENTICATED, f"API key: expected {expected}")

    def _known(self, key: bytes) -> bool:
        given = sha256(key).digest()
        known = False
        for digest in self._digests:  # all of them, whichever matches
            known |= compare_digest(given, digest)
        return known


def _checked(key: str) -> str:
    """Return a key that may be used; an empty one would let in callers that show none."""
    if not key or key != key.strip() or not key.isascii():
        raise InputError("API key", None, "ASCII characters without spaces around them, at least one")
    return key


def shown_key(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    return bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")


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
