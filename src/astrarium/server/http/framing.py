"""The framing says where each HTTP/1.1 request ends, and what is none, as RFC 9112 and RFC 9110 have it.

It stands before uvicorn's parser, which takes what it must not (no `Host`, two of them, unknown versions,
chunk extensions without end). Bytes go in as they come; pieces come out that any parser reads in the same
way: heads of which every line was checked, chunks without extensions, no trailers.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from astrarium.server.http.request_head import BadRequest, RequestHead, field_of, shown
from astrarium.server.settings import HttpLimits

_BEGINNING = re.compile(rb"(?:\r|[!#$%&'*+\-.^_`|~0-9A-Za-z]{0,32}(?: .*)?)\Z", re.DOTALL)
_EXTENSION = rb"[ \t]*;[\t\x20-\x7e\x80-\xff]*"
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})((?:%b)?)\r\n" % _EXTENSION)
_NEXT_CHUNK = re.compile(rb"\r\n" + _CHUNK.pattern)
_PART_OF_CHUNK = re.compile(rb"(?:[0-9A-Fa-f]{1,15}(?:[ \t]*|%b)\r?)?\Z" % _EXTENSION)
_PART_OF_NEXT = re.compile(rb"(?:\r(?:\n%b)?)?\Z" % _PART_OF_CHUNK.pattern.removesuffix(rb"\Z"))
_LONGEST_SIZE = 2 + 15 + 2  # bytes of a chunk's line and of what ends the chunk before, without extensions
_EXTENSIONS = 4 * 1024  # bytes of chunk extensions that a request may have in all; hardly anybody sends one


class RequestFraming:
    """The framing of one connection's requests.

    `piece` is to be asked until it has none; with `at_start` the next piece would begin another request.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._next: Callable[[], bytes | None] = self._head
        self._begin()

    def _begin(self) -> None:
        self._next = self._head
        self._request = RequestHead()
        self._used = 0  # bytes of the head, or of the trailers
        self._searched = 0  # bytes of the buffer that have no end of a line
        self._left = 0  # bytes of a body, or of a chunk
        self._extensions = 0  # bytes
        self._chunks = 0

    @property
    def at_start(self) -> bool:
        return self._next == self._head and not self._request.first_line

    @property
    def in_head(self) -> bool:
        return self._next == self._head

    @property
    def buffered(self) -> bool:
        return bool(self._buffer)

    @property
    def arriving(self) -> bool:
        """Whether a part of a request is here, and not the rest."""
        return self.buffered or not self.at_start

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def piece(self) -> bytes | None:
        """Return the next piece, or None where more bytes must come first; BadRequest where they are none."""
        return self._next()

    def _take(self, size: int) -> bytes:
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        return piece

    def _line(self, what: str) -> bytes | None:
        """Return the next line of a head or of trailers, without its end."""
        end = self._buffer.find(b"\n", self._searched)
        here = len(self._buffer) if end < 0 else end + 1
        if self._used + here > self._limits.head_bytes:
            raise self._too_long(what)
        if end < 0:
            self._searched = len(self._buffer)
            return None
        self._used = self._used + here
        self._searched = 0
        line = self._take(here)
        if not line.endswith(b"\r\n"):
            raise BadRequest(400, f"{what}: expected lines that end with CR LF (got {shown(line)})")
        return line[:-2]

    def _too_long(self, what: str) -> BadRequest:
        limits = self._limits
        return BadRequest(
            431, f"{what}: expected at most {limits.head_bytes} bytes and {limits.headers} headers"
        )

    def _head(self) -> bytes | None:
        request = self._request
        while (line := self._line("head")) is not None:
            if not request.first_line:
                request.set_first_line(line)
            elif line:
                if len(request.fields) == self._limits.headers:
                    raise self._too_long("head")
                request.fields.append(field_of(line, "head"))
            else:
                return self._whole_head()
        if not request.first_line and not _BEGINNING.match(self._buffer):
            raise BadRequest(400, f"request: expected one of HTTP/1.1 (got {shown(self._buffer)})")
        return None

    def _whole_head(self) -> bytes:
        request = self._request
        request.check()
        length = request.body_length(self._limits.body_bytes)
        self._next = self._chunked if length is None else self._counted if length else self._head
        self._left = length or 0
        if self.in_head:
            self._begin()
        return request.for_parser()

    def _counted(self) -> bytes | None:
        body = self._take(self._left)
        self._left -= len(body)
        if not self._left:
            self._begin()
        return body or None

    def _chunked(self) -> bytes | None:
        """Return all that is here of the chunks as one: many small ones then cost the parser little."""
        parts = list[bytearray]()
        at = 0
        ends = False
        while not ends:
            part = self._buffer[at : at + self._left]
            self._left -= len(part)
            at += len(part)
            parts.append(part)
            if self._left or (size_line := self._chunk_line(at)) is None:
                break
            at = size_line.end()
            ends = not self._left
        del self._buffer[:at]
        if ends:
            self._next = self._trailers
            self._used = 0
            self._searched = 0
        body = b"".join(parts)
        return b"%x\r\n%b\r\n" % (len(body), body) if body else (self._trailers() if ends else None)

    def _chunk_line(self, at: int) -> re.Match[bytes] | None:
        """Read the line before a chunk, and the end of the chunk before; `_left` is then what it says."""
        size_line = (_NEXT_CHUNK if self._chunks else _CHUNK).match(self._buffer, at)
        if size_line is None:
            self._check_part(at)
            return None
        self._extensions += len(size_line[2])
        if self._extensions > _EXTENSIONS:
            raise _long_extensions()
        self._chunks += 1
        self._left = int(size_line[1], 16)
        if self._left > self._limits.body_bytes:
            expected = f"at most {self._limits.body_bytes} bytes"
            raise BadRequest(413, f"body: expected {expected} (got a chunk of {self._left})")
        return size_line

    def _check_part(self, at: int) -> None:
        """Refuse what cannot become a chunk's line."""
        if len(self._buffer) - at > _LONGEST_SIZE + _EXTENSIONS - self._extensions:
            raise _long_extensions()
        if not (_PART_OF_NEXT if self._chunks else _PART_OF_CHUNK).match(self._buffer, at):
            expected = (
                "chunks after sizes of at most 15 hexadecimal digits, each line and chunk ended by CR LF"
            )
            raise BadRequest(400, f"body: expected {expected} (got {shown(self._buffer[at:])})")

    def _trailers(self) -> bytes | None:
        """Read trailers, which mean nothing here, to their end."""
        while (line := self._line("trailers")) is not None:
            if not line:
                self._begin()
                return b"0\r\n\r\n"
            field_of(line, "trailers")
        return None


def _long_extensions() -> BadRequest:
    return BadRequest(400, f"body: expected at most {_EXTENSIONS} bytes of chunk extensions in all")
