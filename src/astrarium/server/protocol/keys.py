"""API keys say who may call. A comparison takes the same time whether or not, and where, a key differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from hmac import compare_digest

from astrarium.core.errors import InputError
from astrarium.server.contract import Kind, Refused

NO_KEY = -1


class Keys:
    """Keys open a server to callers; an empty set is an open server."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [sha256(_checked(key).encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Refused unless these headers (or metadata, names in lower case) show a known key."""
        if self.number(headers) is None:
            expected = "'Authorization: Bearer KEY' or 'x-api-key: KEY' with a key that this server knows"
            raise Refused(Kind.UNAUTHENTICATED, f"API key: expected {expected}")

    def number(self, headers: Mapping[bytes, bytes]) -> int | None:
        """Return which key is shown: its number, -1 where there are no keys, None where nobody knows it."""
        if not self._digests:
            return NO_KEY
        key_digest = sha256(shown_key(headers)).digest()
        known = None
        for number, digest in enumerate(self._digests):  # all of them, whichever matches
            if compare_digest(key_digest, digest):
                known = number
        return known


def _checked(key: str) -> str:
    """Return a key that may be used; an empty one would let in callers that show none."""
    if not key or key != key.strip() or not key.isascii():
        raise InputError("API key", None, "ASCII characters without spaces around them, at least one")
    return key


def shown_key(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    return bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
