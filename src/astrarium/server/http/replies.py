"""What goes back over HTTP: answers, and refusals that say why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from math import ceil
from typing import Any, NamedTuple

import msgspec

from astrarium.core.errors import AstrariumError
from astrarium.server.contract import Kind, Refused
from astrarium.server.protocol.wire import ErrorAnswer

Headers = list[tuple[bytes, bytes]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
JSON = (b"content-type", b"application/json")
_encode = msgspec.json.Encoder().encode


class Reply(NamedTuple):
    status: int
    headers: Headers
    body: bytes | bytearray


class HttpRefusal(AstrariumError):
    """An HTTP refusal is one that only HTTP knows (a method, a type of content), with its own status."""

    def __init__(self, status: int, reason: str, headers: Mapping[bytes, bytes] | None = None) -> None:
        self.status = status
        self.reason = reason
        self.headers = list((headers or {}).items())
        super().__init__(reason)


def json_reply(content: object, status: int = 200, headers: Headers | None = None) -> Reply:
    return Reply(status, [JSON, *(headers or [])], _encode(content))


def refusal(refused: Refused) -> Reply:
    headers: Headers = []
    if refused.kind is Kind.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    if refused.retry_after is not None or refused.kind is Kind.OVERLOADED:
        headers += _retry_after(refused.retry_after or 0.0)
    return json_reply(ErrorAnswer(refused.reason), refused.kind.http, headers)


def _retry_after(seconds: float) -> Headers:
    """Return headers with whole seconds as HTTP has it, and milliseconds for clients that can wait less."""
    whole = max(1, ceil(seconds))
    fine = max(1, ceil(seconds * 1000))
    return [(b"retry-after", b"%d" % whole), (b"x-astrarium-retry-after-ms", b"%d" % fine)]


def http_refusal(refused: HttpRefusal) -> Reply:
    return json_reply(ErrorAnswer(refused.reason), refused.status, refused.headers)


async def send_reply(send: Send, reply: Reply) -> None:
    headers = [*reply.headers, (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
