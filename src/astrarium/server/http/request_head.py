"""The head of an HTTP/1.1 request, its first line and its headers, as RFC 9112 and RFC 9110 have it."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from astrarium.core.errors import AstrariumError

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET = re.compile(rb"[!-~]+")
_VERSION = re.compile(rb"HTTP/([0-9])\.([0-9])")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?", re.ASCII)
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"PATCH"})
_LONGEST_LENGTH = 18  # digits of a Content-Length that is a number of bytes at all


class BadRequest(AstrariumError):
    """A bad request is none: the connection is closed after *status* and *reason* are told."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(reason)


class Field(NamedTuple):
    name: bytes  # in lower case
    value: bytes


class RequestHead:
    """A head is filled line by line; nothing of it is believed before `check`."""

    def __init__(self) -> None:
        self.first_line = b""  # as a parser is given it: a path and not a URL, HTTP/1.0 or 1.1
        self.fields: list[Field] = []

    def set_first_line(self, line: bytes) -> None:
        """Take the request line; an empty line before it means nothing."""
        self.first_line = _request_line(line) if line else b""

    @property
    def _is_old(self) -> bool:
        return self.first_line.endswith(b"0")

    def check(self) -> None:
        self._check_host()
        self._check_expectation()

    def for_parser(self) -> bytes:
        lines = [b"%b: %b" % field for field in self.fields if not _means_nothing(field, self._is_old)]
        return b"\r\n".join([self.first_line, *lines, b"", b""])

    def body_length(self, most: int) -> int | None:
        """Return the bytes of the body that the head announces; None if it comes in chunks."""
        codings = self._values(b"transfer-encoding")
        lengths = self._values(b"content-length")
        if codings:
            self._check_codings(codings, lengths)
            return None
        if len(lengths) > 1:
            raise BadRequest(400, f"Content-Length: expected it once (got {len(lengths)} of them)")
        return _length(lengths[0], most) if lengths else 0

    def _values(self, name: bytes) -> list[bytes]:
        return [field.value for field in self.fields if field.name == name]

    def _check_host(self) -> None:
        hosts = self._values(b"host")
        if len(hosts) > 1 or (not hosts and not self._is_old):
            raise BadRequest(400, f"Host: expected it once (got {len(hosts)} of them)")
        if hosts and not _HOST.fullmatch(hosts[0]):
            raise BadRequest(400, f"Host: expected a name or an address, and a port (got {shown(hosts[0])})")

    def _check_expectation(self) -> None:
        for value in self._values(b"expect"):
            if value.lower() != b"100-continue" and not self._is_old:
                raise BadRequest(417, f"Expect: expected 100-continue (got {shown(value)})")

    def _check_codings(self, codings: list[bytes], lengths: list[bytes]) -> None:
        if self._is_old:
            raise BadRequest(400, "Transfer-Encoding: expected none in a request of HTTP/1.0")
        if lengths:
            raise BadRequest(400, "body: expected Content-Length or Transfer-Encoding (got both)")
        coding = b", ".join(codings).lower()
        if coding != b"chunked":
            ends = [one.strip() for one in coding.split(b",")]
            status = 501 if ends[-1] == b"chunked" and ends.count(b"chunked") == 1 and all(ends) else 400
            raise BadRequest(status, f"Transfer-Encoding: expected chunked alone (got {shown(coding)})")


def _request_line(line: bytes) -> bytes:
    method, _, rest = line.partition(b" ")
    target, _, version = rest.rpartition(b" ")
    number = _VERSION.fullmatch(version)
    if number is None or not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise BadRequest(400, f"request: expected 'METHOD target HTTP/1.1' (got {shown(line)})")
    if number[1] != b"1":
        raise BadRequest(505, f"version: expected HTTP/1.1 or HTTP/1.0 (got {version.decode()})")
    if method not in _METHODS:
        known = ", ".join(sorted(one.decode() for one in _METHODS))
        raise BadRequest(501, f"method: expected one of {known} (got {method.decode()[:40]})")
    minor = b"0" if number[2] == b"0" else b"1"  # what is newer is meant to be read as 1.1
    return b"%b %b HTTP/1.%b" % (method, _origin_form(method, target), minor)


def field_of(line: bytes, what: str) -> Field:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name):
        raise BadRequest(400, f"{what}: expected lines of the form 'Name: value' (got {shown(line)})")
    if _CONTROL.search(value):
        expected = f"a value without control characters for {name.decode()[:80]}"
        raise BadRequest(400, f"{what}: expected {expected} (got {shown(value)})")
    return Field(name.lower(), value.strip(b" \t"))


def _length(value: bytes, most: int) -> int:
    if not value.isdigit():
        raise BadRequest(400, f"Content-Length: expected a whole number of bytes (got {shown(value)})")
    if len(value) > _LONGEST_LENGTH:
        expected = f"at most {most} bytes"
        raise BadRequest(413, f"body: expected {expected} (got {value[:40].decode()})")
    return int(value)


def shown(text: bytes | bytearray) -> str:
    return repr(bytes(text[:60]))


def _means_nothing(field: Field, is_old: bool) -> bool:
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
        raise BadRequest(400, f"target: expected a path or an http URL (got {shown(target)})")
    try:
        parts = urlsplit(target)
    except ValueError as error:
        raise BadRequest(400, f"target: expected a path or an http URL: {error}") from None
    return (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")
