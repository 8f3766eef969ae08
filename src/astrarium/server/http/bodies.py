"""Bodies over HTTP are read within limits, and decompressed without trusting how large they will become."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from astrarium.server.contract import Kind, Refused
from astrarium.server.http.replies import HttpRefusal
from astrarium.server.protocol.checking import bad
from astrarium.server.settings import HttpLimits

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Body = bytes | bytearray
ENCODINGS = ("gzip", "deflate")
_IN_A_THREAD = 64 * 1024  # bytes; what takes longer to (de)compress than a switch of threads
_ANY_WRAPPING = 32 + zlib.MAX_WBITS  # zlib finds out by itself whether it reads gzip or deflate
_WRAPPINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_FAST = 1


class Disconnected(Exception):
    """The client left before its request was whole."""


class BodyReader:
    """A body reader reads bodies of at most `limits.body_bytes` each, and `limits.held_bytes` in all."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.held = 0

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive) -> Body:
        """Return the body without its Content-Encoding. Call `let_go` once it is of no use any more."""
        sent = await self._sent(headers, receive)
        encoding = headers.get(b"content-encoding")
        if not encoding:
            return sent
        try:
            body = await decompressed(sent, encoding.decode("latin-1").lower(), self.limits.body_bytes)
        finally:
            self.let_go(sent)
        self._take(len(body))
        return body

    async def _sent(self, headers: Mapping[bytes, bytes], receive: Receive) -> Body:
        self._check_announced(headers)
        message = await receive()
        body: Body = _part(message)
        self._take(len(body))
        return await self._rest(bytearray(body), receive) if message.get("more_body") else body

    async def _rest(self, body: bytearray, receive: Receive) -> bytearray:
        more = True
        try:
            while more:
                message = await receive()
                part = _part(message)
                more = message.get("more_body", False)
                self._take(len(part), len(body))
                body += part
        except BaseException:
            self.let_go(body)
            raise
        return body

    def _check_announced(self, headers: Mapping[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise bad("Content-Length", length.decode("latin-1"), "a whole number of bytes")
        if len(length) > 18 or int(length) > self.limits.body_bytes:
            raise self._too_large(length.decode("latin-1")[:40])

    def _take(self, size: int, before: int = 0) -> None:
        """Count *size* more bytes of a body of which *before* were read."""
        if before + size > self.limits.body_bytes:
            raise self._too_large("more")
        if self.held + size > self.limits.held_bytes:
            reason = f"requests in flight: expected at most {self.limits.held_bytes} bytes in all"
            raise Refused(Kind.OVERLOADED, reason, retry_after=1.0)
        self.held += size

    def let_go(self, body: Body) -> None:
        self.held -= len(body)

    def _too_large(self, got: str) -> Refused:
        expected = f"at most {self.limits.body_bytes} bytes"
        return Refused(Kind.TOO_LARGE, f"body: expected {expected} (got {got})")


def _part(message: MutableMapping[str, Any]) -> bytes:
    if message["type"] == "http.disconnect":
        raise Disconnected
    part: bytes = message.get("body", b"")
    return part


async def decompressed(body: Body, encoding: str, limit: int) -> Body:
    """Decompress *body* by its Content-Encoding, as long as that stays within *limit* bytes."""
    if encoding == "identity":
        return body
    if encoding not in ENCODINGS:
        expected = f"{', '.join(ENCODINGS)} or identity"
        reason = f"Content-Encoding: expected {expected} (got {encoding[:80]!r})"
        raise HttpRefusal(415, reason, {b"accept-encoding": ", ".join(ENCODINGS).encode()})
    if len(body) > _IN_A_THREAD:
        return await asyncio.to_thread(_inflate, body, limit)
    return _inflate(body, limit)


def _inflate(body: Body, limit: int) -> bytes:
    inflater = zlib.decompressobj(_ANY_WRAPPING)
    try:
        whole = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise bad("body", None, f"gzip or deflate, as Content-Encoding says: {error}") from None
    if len(whole) > limit:
        raise Refused(Kind.TOO_LARGE, f"body: expected at most {limit} bytes after decompression")
    if not inflater.eof or inflater.unused_data:
        trouble = "it ends too early" if not inflater.eof else "something follows it"
        raise bad("body", None, f"one compressed stream: {trouble}")
    return whole


def asked_encoding(accepted: bytes) -> str:
    """Return the encoding to answer in: one alone was asked for, a list is what a library can read."""
    encoding = accepted.decode("latin-1").strip().lower()
    return encoding if encoding in ENCODINGS else ""


async def compressed(body: Body, encoding: str) -> Body:
    if len(body) > _IN_A_THREAD:
        return await asyncio.to_thread(_deflate, body, encoding)
    return _deflate(body, encoding)


def _deflate(body: Body, encoding: str) -> bytes:
    deflater = zlib.compressobj(_FAST, zlib.DEFLATED, _WRAPPINGS[encoding])
    return deflater.compress(body) + deflater.flush()
