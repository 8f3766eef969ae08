"""Tensors in JSON are lists, flat or nested; they are turned to and from the protocol's binary layout."""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import Any

import msgspec
import numpy as np

from astrarium.core.optional import extension
from astrarium.server.contract import Refused
from astrarium.server.http.json_outline import place_and_complaint
from astrarium.server.protocol.checking import CheckedTensor, bad
from astrarium.server.settings import LARGE
from astrarium.serving.live import tensors
from astrarium.serving.live.tensors import BF16, BYTES, DATATYPES, Tensor, TensorSpec

_SHOWN = 40  # bytes of what is wrong
_NOT_JSON = f"{BF16} has no form in JSON"


def read_elements(reader: Any, raw: msgspec.Raw, placed: CheckedTensor, model: str) -> bytes:
    """Return the binary layout of a large JSON list, by *reader*, the native code."""
    half = placed.spec.datatype == "FP16"
    binary_or_place = reader.from_json(raw, "FP64" if half else placed.spec.datatype, list(placed.shape))
    if isinstance(binary_or_place, tuple):
        element, byte = binary_or_place
        raise _wrong_element(placed, element, bytes(memoryview(raw)[byte : byte + _SHOWN]), model)
    return _halves(binary_or_place, placed, model) if half else bytes(binary_or_place)


def _halves(doubles: bytes, placed: CheckedTensor, model: str) -> bytes:
    with np.errstate(over="ignore"):
        halves = np.frombuffer(doubles).astype(np.float16)
    beyond = np.flatnonzero(np.isinf(halves))
    if len(beyond):
        raise _wrong_element(placed, int(beyond[0]), None, model)
    return halves.tobytes()


def _wrong_element(placed: CheckedTensor, element: int, got: object, model: str) -> Refused:
    form = f"a flat list of {placed.spec.datatype}, or one nested like shape {list(placed.shape)}"
    return bad(f"{placed.field}.data, element {element}", got, f"{placed.elements} elements: {form}", model)


def write_elements(writer: Any, tensor: Tensor) -> msgspec.Raw:
    """Return a JSON list of a large tensor's elements, by *writer*, the native code."""
    data = tensor.data
    datatype = tensor.datatype
    if datatype == "FP16":
        data = np.frombuffer(data, np.float16).astype(np.float32).data
        datatype = "FP32"
    text_or_place = writer.to_json(data, datatype)
    if isinstance(text_or_place, int):  # which element is no text
        element = tensors.unpack_bytes(tensor.data)[text_or_place]
        raise _no_text(tensor.name, text_or_place, element)
    return msgspec.Raw(text_or_place)


_CODES = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
_NESTED = re.compile(rb"\s*\[\s*\[")


def from_json(raw: msgspec.Raw, placed: CheckedTensor, model: str) -> bytes:
    """Return the binary layout of a JSON list, refused where it is not exactly what was announced."""
    if placed.spec.datatype == BF16:
        raise bad(f"{placed.field}.data", None, f"parameters.binary_data_size: {_NOT_JSON}", model)
    if len(memoryview(raw)) > LARGE and (reader := extension("_tensors")) is not None:
        return read_elements(reader, raw, placed, model)
    depth = len(placed.shape) if _NESTED.match(raw) else 1
    try:
        values = _decoder(placed.spec.datatype, depth).decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(error, placed, model) from None
    flat = _flattened(values, placed, model) if depth > 1 else values
    if len(flat) != placed.elements:
        expected = f"{placed.elements} elements for shape {list(placed.shape)}"
        raise bad(f"{placed.field}.data", f"{len(flat)} elements", expected, model)
    return packed(placed, flat, model)


def packed(placed: CheckedTensor, values: Any, model: str) -> bytes:
    """Return the binary layout of a flat list, refused where an element does not fit the datatype."""
    datatype = placed.spec.datatype
    if datatype == BYTES:
        return tensors.pack_bytes([value.encode() if isinstance(value, str) else value for value in values])
    try:
        return struct.pack(f"<{len(values)}{_CODES[datatype]}", *values)
    except (struct.error, OverflowError):
        raise _out_of_range(placed, values, model) from None


def to_json(tensor: Tensor) -> list[Any] | msgspec.Raw:
    """Return a tensor as a flat list; NaN and the infinities, which JSON cannot write, become null."""
    if len(tensor.data) > LARGE and (writer := extension("_tensors")) is not None:
        return write_elements(writer, tensor)
    if tensor.datatype == BYTES:
        elements = enumerate(tensors.unpack_bytes(tensor.data))
        return [_text(tensor.name, at, element) for at, element in elements]
    values: list[Any] = np.frombuffer(tensor.data, DATATYPES[tensor.datatype]).tolist()
    return values


def check_in_json(spec: TensorSpec, model: str) -> None:
    """Refuse an output that is wanted in JSON and cannot be written there."""
    if spec.datatype == BF16:
        raise bad(f"output {spec.name}", None, f"the parameter binary_data: true: {_NOT_JSON}", model)


@cache
def _decoder(datatype: str, depth: int) -> msgspec.json.Decoder[Any]:
    element: Any = {"BOOL": bool, BYTES: str}.get(datatype) or (float if datatype[0] == "F" else int)
    for _ in range(depth):
        element = list[element]
    return msgspec.json.Decoder(element)


def _flattened(values: list[Any], placed: CheckedTensor, model: str) -> list[Any]:
    level: list[Any] = [values]
    for axis, size in enumerate(placed.shape):
        for part in level:
            if len(part) != size:
                expected = f"lists of {size} along dimension {axis}, as in shape {list(placed.shape)}"
                raise bad(f"{placed.field}.data", f"one of {len(part)}", expected, model)
        level = [element for part in level for element in part]
    return level


def _unreadable(error: Exception, placed: CheckedTensor, model: str) -> Refused:
    expected = f"a flat list of {placed.spec.datatype}, or one nested like shape {list(placed.shape)}"
    where, what = place_and_complaint(error)
    return bad(f"{placed.field}.data{where}", None, f"{expected}: {what}", model)


def _out_of_range(placed: CheckedTensor, values: Any, model: str) -> Refused:
    code = f"<{_CODES[placed.spec.datatype]}"
    for at, value in enumerate(values):
        try:
            struct.pack(code, value)
        except (struct.error, OverflowError):
            expected = f"numbers that {placed.spec.datatype} can hold"
            return bad(f"{placed.field}.data, element {at}", value, expected, model)
    raise AssertionError("every element fits by itself")


def _text(name: str, at: int, element: bytes) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise _no_text(name, at, element) from None


def _no_text(name: str, at: int, element: bytes) -> Refused:
    expected = "text in UTF-8; ask for this output with the parameter binary_data: true"
    return bad(f"output {name}, element {at}", element[:20], expected)
