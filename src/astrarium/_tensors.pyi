"""Tensors of requests and batches, read, written and gathered faster than Python can."""

from collections.abc import Sequence
from typing import Any, Literal

from typing_extensions import Buffer

Range = tuple[int, int]  # where it begins and ends
MessageOutline = tuple[
    bytes,  # what is left
    list[Range],  # raw contents
    list[list[Range]],  # typed contents, by input
]

ALIGNMENT: int = 64

def gather(memory: Buffer, members: bytes, sizes: Sequence[int], arrays: list[Buffer]) -> None:
    """Copy the items of a batch from shared memory into arrays, one for each input; sizes are the bytes of an
    item."""

def scatter(memory: Buffer, members: bytes, sizes: Sequence[int], arrays: list[Buffer]) -> None:
    """Copy the items of a batch from arrays, one for each output, to where shared memory has place for the
    answers."""

def outline(json: Buffer) -> tuple[bytes, list[Range]] | int:
    """Cut the elements of tensors out of a request: return what is left, and where the pieces lie. Where it
    is no JSON, return the byte at which it makes no sense."""

def from_json(json: Buffer, datatype: str, shape: Sequence[int]) -> bytes | tuple[int, int]:
    """Return the binary layout of a JSON list; or how many elements were right, and at which byte the next
    one is not."""

def to_json(data: Buffer, datatype: str) -> bytes | int:
    """Return a tensor as a JSON list, or which of its elements is no text in UTF-8."""

def bytes_elements(data: Buffer, most: int) -> tuple[int, int]:
    """Count the elements of a BYTES tensor, no further than one more than *most*, and return where the last
    one ends: past the data where a length says too much."""

def unpack_bytes(data: Buffer) -> list[bytes] | None:
    """Return the elements of a BYTES tensor, or None where their lengths do not add up."""

def pack_bytes(elements: list[Any]) -> bytes | None:
    """Return the binary layout of a list of bytes, or None where something else is among them."""

def first_outside(data: Buffer, datatype: str, low: int, high: int) -> int | None:
    """Return the place of the first element beyond the limits, which are as `native_bounds` makes them, or
    None."""

def message_outline(message: Buffer, most: int) -> MessageOutline | Literal[False] | None:
    """Cut the tensors out of a ModelInferRequest. Return False where more than so many bytes would be left,
    None where it is no such message."""

def from_contents(contents: Buffer, datatype: str, elements: int) -> bytes | int:
    """Return the binary layout of typed contents of a message, or how many elements were right."""
