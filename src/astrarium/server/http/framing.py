"""The framing says where each HTTP/1.1 request ends, and what is none, as RFC 9112 and RFC 9110 have it.

It stands before uvicorn's parser, which takes what it must not (no `Host`, two of them, unknown versions,
chunk extensions without end). Bytes go in as they come; pieces come out that any parser reads in the same
way: heads of which every line was checked, chunks without extensions, no trailers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from astrarium.core.errors import AstrariumError
from astrarium.server.settings import HttpLimits

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BEGINNING = re.compile(rb"(?:\r|[!#$%&'*+\-.^_`|~0-9A-Za-z]{0,32}(?: .*)?)\Z", re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET = re.compile(rb"[!-~]+")
_VERSION = re.compile(rb"HTTP/([0-9])\.([0-9])")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?", re.ASCII)
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"PATCH"})

_EXTENSION = rb"[ \t]*;[\t\x20-\x7e\x80-\xff]*"
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})((?:%b)?)\r\n" % _EXTENSION)
_NEXT_CHUNK = re.compile(rb"\r\n" + _CHUNK.pattern)
_PART_OF_CHUNK = re.compile(rb"(?:[0-9A-Fa-f]{1,15}(?:[ \t]*|%b)\r?)?\Z" % _EXTENSION)
_PART_OF_NEXT = re.compile(rb"(?:\r(?:\n%b)?)?\Z" % _PART_OF_CHUNK.pattern.removesuffix(rb"\Z"))
_LONGEST_SIZE = 2 + 15 + 2  # bytes of a chunk's line and of what ends the chunk before, without extensions
_EXTENSIONS = 4 * 1024  # bytes of chunk extensions that a request may have in all; hardly anybody sends one
_LONGEST_LENGTH = 18  # digits of a Content-Length that is a number of bytes at all


class BadRequest(AstrariumError):
    """A bad request is none: the connection is closed after *status* and *reason* are told."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(reason)


class _Field(NamedTuple):
    name: bytes  # in lower case
    value: bytes


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
        self._first, self._fields = b"", list[_Field]()
        self._used = 0  # bytes of the head, or of the trailers
        self._searched = 0  # bytes of the buffer that have no end of a line
        self._left = 0  # bytes of a body, or of a chunk
        self._extensions = 0  # bytes
        self._chunks = 0

    @property
    def at_start(self) -> bool:
        return self._next == self._head and not self._first

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

    # lines

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
            raise BadRequest(400, f"{what}: expected lines that end with CR LF (got {_shown(line)})")
        return line[:-2]

    def _too_long(self, what: str) -> BadRequest:
        limits = self._limits
        return BadRequest(
            431, f"{what}: expected at most {limits.head_bytes} bytes and {limits.headers} headers"
        )

    def _field(self, line: bytes, what: str) -> _Field:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name):
            raise BadRequest(400, f"{what}: expected lines of the form 'Name: value' (got {_shown(line)})")
        if _CONTROL.search(value):
            expected = f"a value without control characters for {name.decode()[:80]}"
            raise BadRequest(400, f"{what}: expected {expected} (got {_shown(value)})")
        return _Field(name.lower(), value.strip(b" \t"))

    # the head

    def _head(self) -> bytes | None:
        while (line := self._line("head")) is not None:
            if not self._first:
                self._first = (
                    self._request_line(line) if line else b""
                )  # an empty line before it means nothing
            elif line:
                if len(self._fields) == self._limits.headers:
                    raise self._too_long("head")
                self._fields.append(self._field(line, "head"))
            else:
                return self._whole_head()
        if not self._first and not _BEGINNING.match(self._buffer):
            raise BadRequest(400, f"request: expected one of HTTP/1.1 (got {_shown(self._buffer)})")
        return None

    def _request_line(self, line: bytes) -> bytes:
        method, _, rest = line.partition(b" ")
        target, _, version = rest.rpartition(b" ")
        number = _VERSION.fullmatch(version)
        if number is None or not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
            raise BadRequest(400, f"request: expected 'METHOD target HTTP/1.1' (got {_shown(line)})")
        if number[1] != b"1":
            raise BadRequest(505, f"version: expected HTTP/1.1 or HTTP/1.0 (got {version.decode()})")
        if method not in _METHODS:
            known = ", ".join(sorted(one.decode() for one in _METHODS))
            raise BadRequest(501, f"method: expected one of {known} (got {method.decode()[:40]})")
        minor = b"0" if number[2] == b"0" else b"1"  # what is newer is meant to be read as 1.1
        return b"%b %b HTTP/1.%b" % (method, _origin_form(method, target), minor)

    def _whole_head(self) -> bytes:
        is_old = self._first.endswith(b"0")
        self._check_host(is_old)
        self._check_expectation(is_old)
        self._next = self._body_of(is_old)
        lines = [b"%b: %b" % field for field in self._fields if not _means_nothing(field, is_old)]
        head = b"\r\n".join([self._first, *lines, b"", b""])
        if self.in_head:
            self._begin()
        return head

    def _values(self, name: bytes) -> list[bytes]:
        return [field.value for field in self._fields if field.name == name]

    def _check_host(self, is_old: bool) -> None:
        hosts = self._values(b"host")
        if len(hosts) > 1 or (not hosts and not is_old):
            raise BadRequest(400, f"Host: expected it once (got {len(hosts)} of them)")
        if hosts and not _HOST.fullmatch(hosts[0]):
            raise BadRequest(400, f"Host: expected a name or an address, and a port (got {_shown(hosts[0])})")

    def _check_expectation(self, is_old: bool) -> None:
        for value in self._values(b"expect"):
            if value.lower() != b"100-continue" and not is_old:
                raise BadRequest(417, f"Expect: expected 100-continue (got {_shown(value)})")

    def _body_of(self, is_old: bool) -> Callable[[], bytes | None]:
        """Return what reads the body that the head announces."""
        codings = self._values(b"transfer-encoding")
        lengths = self._values(b"content-length")
        if codings:
            self._check_codings(codings, lengths, is_old)
            return self._chunked
        if len(lengths) > 1:
            raise BadRequest(400, f"Content-Length: expected it once (got {len(lengths)} of them)")
        if lengths:
            self._left = self._length(lengths[0])
        return self._counted if self._left else self._head

    def _check_codings(self, codings: list[bytes], lengths: list[bytes], is_old: bool) -> None:
        if is_old:
            raise BadRequest(400, "Transfer-Encoding: expected none in a request of HTTP/1.0")
        if lengths:
            raise BadRequest(400, "body: expected Content-Length or Transfer-Encoding (got both)")
        given = b", ".join(codings).lower()
        if given != b"chunked":
            ends = [one.strip() for one in given.split(b",")]
            status = 501 if ends[-1] == b"chunked" and ends.count(b"chunked") == 1 and all(ends) else 400
            raise BadRequest(status, f"Transfer-Encoding: expected chunked alone (got {_shown(given)})")

    def _length(self, value: bytes) -> int:
        if not value.isdigit():
            raise BadRequest(400, f"Content-Length: expected a whole number of bytes (got {_shown(value)})")
        if len(value) > _LONGEST_LENGTH:
            expected = f"at most {self._limits.body_bytes} bytes"
            raise BadRequest(413, f"body: expected {expected} (got {value[:40].decode()})")
        return int(value)

    # the body

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
            raise BadRequest(400, f"body: expected {expected} (got {_shown(self._buffer[at:])})")

    def _trailers(self) -> bytes | None:
        """Read trailers, which mean nothing here, to their end."""
        while (line := self._line("trailers")) is not None:
            if not line:
                self._begin()
                return b"0\r\n\r\n"
            self._field(line, "trailers")
        return None


def _shown(text: bytes | bytearray) -> str:
    return repr(bytes(text[:60]))


def _long_extensions() -> BadRequest:
    return BadRequest(400, f"body: expected at most {_EXTENSIONS} bytes of chunk extensions in all")


def _means_nothing(field: _Field, is_old: bool) -> bool:
    """Whether the parser is not to see a header.

    An offer to upgrade is nothing to us, and an end of the request to the parser, which would never see the
    body. Who speaks HTTP/1.0 cannot wait for 100 Continue.
    """
    return field.name == b"upgrade" or (is_old and field.name == b"expect")


def _origin_form(method: bytes, target: bytes) -> bytes:
    """Return a target as a path and a query, whichever form it came in."""
    if target == b"*" and method == b"OPTIONS":
        return b"/"
    if target.startswith(b"/"):
        return target
    if not target.lower().startswith((b"http://", b"https://")):
        raise BadRequest(400, f"target: expected a path or an http URL (got {_shown(target)})")
    try:
        parts = urlsplit(target)
    except ValueError as error:
        raise BadRequest(400, f"target: expected a path or an http URL: {error}") from None
    return (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")
