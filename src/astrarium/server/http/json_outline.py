"""The outline of a request's JSON: what is beside the elements of its tensors, checked and small."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import msgspec

from astrarium.core.optional import extension
from astrarium.server.contract import Kind, Refused
from astrarium.server.protocol.checking import bad
from astrarium.server.settings import LARGE

Json = bytes | bytearray | memoryview


class Outline(NamedTuple):
    """An outline is a request's JSON where each `inputs[i].data` is a number: which of the pieces it was."""

    text: Json
    pieces: list[msgspec.Raw] | None  # None: nothing was cut out


def outline(body: Json) -> Outline:
    """Return the outline of a body; Refused where it is large beside its elements, or no JSON."""
    cutter = extension("_tensors")
    outline_or_error = cutter.outline(body) if cutter is not None else None
    if isinstance(outline_or_error, int):
        raise bad("body", None, f"JSON: it makes no sense from byte {outline_or_error} on")
    if outline_or_error is None:
        return Outline(body, None)
    text, places = outline_or_error
    check_beside(len(text))
    view = memoryview(body)
    return Outline(text, [msgspec.Raw(view[begin:end]) for begin, end in places])


def check_beside(size: int) -> None:
    """Refuse a request with so many bytes of JSON that are no elements of tensors."""
    if size > LARGE:
        expected = f"at most {LARGE} bytes of JSON beside the elements of tensors"
        raise Refused(Kind.TOO_LARGE, f"body: expected {expected} (got {size})")


def check_keys(text: Json) -> None:
    """Refuse JSON in which an object has a key twice: the last one would count, and nobody would know."""
    # How long the numbers are matters to nobody here, and a number may be too long to be read.
    json.loads(bytes(text), object_pairs_hook=_once, parse_int=len, parse_float=len)


def _once(members: list[tuple[str, Any]]) -> None:
    if len(members) < 2:
        return
    seen: set[str] = set()
    for key, _ in members:
        if key in seen:
            raise bad("body", key, "every key of an object once; this one is repeated")
        seen.add(key)


_PLACE = re.compile(r"^(?P<what>.*) - at `\$(?P<where>.*)`$")
_BYTE = re.compile(r"\(byte (\d+)\)$")


def not_json(body: bytes | bytearray | memoryview, error: Exception) -> Refused:
    """Return the refusal of a body that is no JSON, or not of the form that it should have."""
    if isinstance(error, msgspec.ValidationError):
        where, what = place_and_complaint(error)
        what = what.removeprefix("Expected ").replace("Object missing required", "the required")
        return bad(f"body{where}", None, what)
    at = _BYTE.search(str(error))
    if at and bytes(body[int(at[1]) :][:1]) in (b"N", b"I"):
        return bad("body", None, f"JSON, which has no NaN or Infinity (byte {at[1]}): send a binary tensor")
    return bad("body", None, f"JSON: {error}")


def place_and_complaint(error: Exception) -> tuple[str, str]:
    """Return where in the JSON msgspec found fault (empty: it does not say), and what it says of it."""
    match = _PLACE.match(str(error))
    return (match["where"], match["what"]) if match else ("", str(error))
