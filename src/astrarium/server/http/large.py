"""Large JSON, read and written by native code: Python's lock is free meanwhile, so others are served.

Where the extension is missing, everything is read and written as if it were small, and large requests take as
long as they take.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
import numpy as np

from astrarium.core.native import extension
from astrarium.engines.tensors import Tensor
from astrarium.server.checking import Placed, bad
from astrarium.server.contract import Kind, Refused
from astrarium.server.settings import LARGE

Json = bytes | bytearray | memoryview
_SHOWN = 40  # bytes of what is wrong


def native() -> Any | None:
    return extension("_express")


class Outline(NamedTuple):
    """A request's JSON where each `inputs[i].data` is a number: which of the pieces it was."""

    text: Json
    pieces: list[msgspec.Raw] | None  # None: nothing was cut out


def outline(body: Json) -> Outline:
    """Refused where the elements are not all that makes it large, or where it is no JSON."""
    cutter = native()
    found = cutter.outline(body) if cutter is not None else None
    if isinstance(found, int):
        raise bad("body", None, f"JSON: it makes no sense from byte {found} on")
    if found is None:
        return Outline(body, None)
    text, places = found
    if len(text) > LARGE:
        expected = f"at most {LARGE} bytes of JSON beside the elements of tensors"
        raise Refused(Kind.TOO_LARGE, f"body: expected {expected} (got {len(text)})")
    view = memoryview(body)
    return Outline(text, [msgspec.Raw(view[begin:end]) for begin, end in places])


def check_keys(text: Json) -> None:
    """Refuses JSON in which an object has a key twice: the last one would count, and nobody would know."""
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


def read_elements(reader: Any, raw: msgspec.Raw, placed: Placed, model: str) -> bytes:
    """The binary layout of a large JSON list, by *reader*, the native code."""
    half = placed.spec.datatype == "FP16"
    found = reader.from_json(raw, "FP64" if half else placed.spec.datatype, list(placed.shape))
    if isinstance(found, tuple):
        element, byte = found
        raise _wrong_element(placed, element, bytes(memoryview(raw)[byte : byte + _SHOWN]), model)
    return _halves(found, placed, model) if half else bytes(found)


def _halves(doubles: bytes, placed: Placed, model: str) -> bytes:
    with np.errstate(over="ignore"):
        halves = np.frombuffer(doubles).astype(np.float16)
    beyond = np.flatnonzero(np.isinf(halves))
    if len(beyond):
        raise _wrong_element(placed, int(beyond[0]), None, model)
    return halves.tobytes()


def _wrong_element(placed: Placed, element: int, got: object, model: str) -> Refused:
    form = f"a flat list of {placed.spec.datatype}, or one nested like shape {list(placed.shape)}"
    return bad(f"{placed.field}.data, element {element}", got, f"{placed.elements} elements: {form}", model)


def write_elements(writer: Any, tensor: Tensor) -> msgspec.Raw | int:
    """A JSON list of a large tensor's elements, by *writer*; or which of them is no text."""
    data, datatype = tensor.data, tensor.datatype
    if datatype == "FP16":
        data, datatype = np.frombuffer(data, np.float16).astype(np.float32).data, "FP32"
    found = writer.to_json(data, datatype)
    return found if isinstance(found, int) else msgspec.Raw(found)
