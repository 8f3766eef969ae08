"""Forms are bodies of few fields, which are read and checked as a whole."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from astrarium.server.contract import Kind, Refused
from astrarium.server.http.bodies import Body, BodyReader
from astrarium.server.http.json_outline import check_keys, not_json
from astrarium.server.http.replies import HttpRefusal
from astrarium.server.http.routing import HttpRequest
from astrarium.server.protocol.checking import bad
from astrarium.server.settings import LARGE

Form = TypeVar("Form")
# What bodies come as: JSON, JSON with binary tensors, and what curl says of `-d` by itself.
CONTENT_TYPES = (b"application/json", b"application/octet-stream", b"application/x-www-form-urlencoded")


async def read_body(bodies: BodyReader, request: HttpRequest) -> Body:
    """Return the body of a request; the reader is to let go of it."""
    content_type = request.headers.get(b"content-type")
    if content_type is not None and content_type.lower() not in CONTENT_TYPES:
        _check_content_type(content_type.decode("latin-1"))
    return await bodies.read(request.headers, request.receive)


async def read_form(bodies: BodyReader, request: HttpRequest, form: type[Form]) -> Form:
    """Read the body as *form*; an empty one is the form with nothing filled in."""
    body = await read_body(bodies, request)
    bodies.let_go(body)
    if len(body) > LARGE:
        raise Refused(Kind.TOO_LARGE, f"body: expected at most {LARGE} bytes here (got {len(body)})")
    try:
        text = body.strip() or b"{}"
        filled = msgspec.json.decode(text, type=form)
        check_keys(text)
        return filled
    except RecursionError:
        raise bad("body", None, "JSON that is not nested this deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise not_json(body, error) from None


def _check_content_type(content_type: str) -> None:
    """Refuse a content type that is not one of ours once its parameters are left out."""
    if content_type.partition(";")[0].strip().lower().encode("latin-1") not in CONTENT_TYPES:
        expected = "application/json or application/octet-stream"
        raise HttpRefusal(415, f"Content-Type: expected {expected} (got {content_type[:80]!r})")
