"""The bytes of a call become a message. Protobuf parses of a large one only what is beside its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from astrarium.core.optional import extension
from astrarium.server.contract import Kind, ModelCard, Refused
from astrarium.server.grpc.messages import message
from astrarium.server.protocol.regions import PREFIX
from astrarium.server.settings import LARGE
from astrarium.serving.live.tensors import BYTES

Data = bytes | memoryview


class Unreadable(Refused):
    """The bytes are no message of the kind that was asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(Kind.BAD_REQUEST, f"request: expected a message {name} in protobuf's encoding")


class InferMessage(NamedTuple):
    """A ModelInferRequest as given; `contents` are its inputs' typed ones as bytes, if they were cut out."""

    request: Any
    raw: Sequence[Data]
    contents: Sequence[Data | None] | None = None

    def reads_slowly(self, card: ModelCard) -> bool:
        """Whether a thread should look at the elements: the event loop has others to serve."""
        if any(PREFIX in name for one in self.request.inputs for name in one.parameters):
            return True
        looked_at = any(spec.datatype == BYTES or spec.is_limited for spec in card.inputs)
        sizes = sum(map(len, self.raw)) if looked_at else 0
        return max(sizes, sum(len(one or b"") for one in self.contents or ())) > LARGE


def read_message(name: str, data: bytes) -> Any:
    """Read a message without tensors."""
    if len(data) > LARGE:
        raise _too_large(f"at most {LARGE} bytes of {name}")
    return _parsed(name, data)


def read_infer(data: bytes) -> InferMessage:
    native = extension("_tensors")
    if len(data) <= LARGE or native is None:
        request = _parsed("ModelInferRequest", data)
        return InferMessage(request, list(request.raw_input_contents))
    return _outlined(data, native.message_outline(data, LARGE))


def _outlined(data: bytes, outline: Any) -> InferMessage:
    if outline is False:
        raise _too_large(f"at most {LARGE} bytes beside the elements of tensors")
    if outline is None:
        raise Unreadable("ModelInferRequest")
    view = memoryview(data)
    text, raw, contents = outline
    pieces = [[view[begin:end] for begin, end in places] for places in contents]
    typed = [one[0] if len(one) == 1 else b"".join(one) if one else None for one in pieces]
    return InferMessage(_parsed("ModelInferRequest", text), [view[begin:end] for begin, end in raw], typed)


def _parsed(name: str, data: bytes) -> Any:
    try:
        return message(name).FromString(data)
    except DecodeError:
        raise Unreadable(name) from None


def _too_large(expected: str) -> Refused:
    return Refused(Kind.TOO_LARGE, f"request: expected {expected}")
