"""One inference over gRPC: a message becomes a call, its answer becomes a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from astrarium.core.optional import extension
from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.server.contract import InferAnswer, InferCall, Kind, ModelCard, Refused
from astrarium.server.grpc.messages import message
from astrarium.server.grpc.requests import Data, InferMessage
from astrarium.server.http.json_tensors import packed
from astrarium.server.protocol import checking
from astrarium.server.protocol.checking import CheckedTensor, bad
from astrarium.serving.live.tensors import Tensor

_CONTENTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class GrpcCall(NamedTuple):
    call: InferCall
    outputs: list[str]


def read_call(
    card: ModelCard,
    infer_message: InferMessage,
    tag: str,
    received: Time,
    remaining: float | None,
    limit: int,
) -> GrpcCall:
    """Read a call; the client's deadline leaves *remaining* seconds, a tensor has at most *limit* bytes."""
    request = infer_message.request
    checking.check_version(card, request.model_version)
    tensors = _tensors(card, infer_message, limit)
    options = checking.request_options(_plain(request.parameters), tag, card.name)
    rows = tensors[0].shape[0] if tensors else 1
    call = InferCall(card.name, tensors, rows, received, *options, _patience(remaining, card.name))
    return GrpcCall(call, _wanted(card, request))


def _patience(remaining: float | None, model: str) -> Time | None:
    """Return how long the client waits, by the deadline that the call itself carries."""
    if remaining is None:
        return None
    if remaining <= 0:
        raise Refused(Kind.DEADLINE, f"model {model}: the call's own deadline has passed")
    return int(min(remaining * SECOND, FOREVER))


def _tensors(card: ModelCard, infer_message: InferMessage, limit: int) -> list[Tensor]:
    inputs = infer_message.request.inputs
    placed = checking.placed_inputs(card, inputs, limit)
    for tensor, announced in zip(placed, inputs, strict=True):
        checking.check_tensor_parameters(tensor.field, announced.parameters, card.name)
    data = (
        _raw(placed, infer_message, card.name)
        if infer_message.raw
        else _typed(placed, infer_message, card.name)
    )
    tensors = []
    for tensor, content in zip(placed, data, strict=True):
        checking.check_values(tensor, content, card.name)
        tensors.append(Tensor(tensor.spec.name, tensor.spec.datatype, tensor.shape, content))
    return checking.in_card_order(card, tensors)


def _raw(placed: Sequence[CheckedTensor], infer_message: InferMessage, model: str) -> Sequence[Data]:
    raw = infer_message.raw
    if len(raw) != len(placed):
        raise bad("raw_input_contents", f"{len(raw)} of them", f"one for each of {len(placed)} inputs", model)
    typed = infer_message.contents or [
        one.HasField("contents") or None for one in infer_message.request.inputs
    ]
    for tensor, contents, data in zip(placed, typed, raw, strict=True):
        if contents is not None:
            raise bad(f"{tensor.field}.contents", "both", "either contents or raw_input_contents", model)
        checking.check_size(tensor, data, model)
    return raw


def _typed(placed: Sequence[CheckedTensor], infer_message: InferMessage, model: str) -> list[bytes]:
    if infer_message.contents is not None:
        return [
            _native(tensor, data or b"", model)
            for tensor, data in zip(placed, infer_message.contents, strict=True)
        ]
    inputs = infer_message.request.inputs
    return [
        _contents(tensor, announced.contents, model) for tensor, announced in zip(placed, inputs, strict=True)
    ]


def _native(placed: CheckedTensor, data: Data, model: str) -> bytes:
    """Return the binary layout of typed contents as they came, of a request that is large."""
    field = _contents_field(placed, model)
    native = extension("_tensors")
    assert native is not None
    packed_or_right: bytes | int = native.from_contents(data, placed.spec.datatype, placed.elements)
    if isinstance(packed_or_right, bytes):
        return packed_or_right
    expected = f"{placed.elements} elements in {field} for shape {list(placed.shape)}, and nothing else"
    raise bad(f"{placed.field}.contents", f"{packed_or_right} that are right", expected, model)


def _contents_field(placed: CheckedTensor, model: str) -> str:
    field = _CONTENTS.get(placed.spec.datatype)
    if field is None:
        expected = f"raw_input_contents: {placed.spec.datatype} has no typed contents"
        raise bad(f"{placed.field}.contents", None, expected, model)
    return field


def _contents(placed: CheckedTensor, contents: Any, model: str) -> bytes:
    field = _contents_field(placed, model)
    others = [descriptor.name for descriptor, _ in contents.ListFields() if descriptor.name != field]
    values = getattr(contents, field)
    if others or len(values) != placed.elements:
        expected = f"{placed.elements} elements in {field} for shape {list(placed.shape)}"
        got = f"{len(values)}" + (f", and some in {', '.join(others)}" if others else "")
        raise bad(f"{placed.field}.contents", got, expected, model)
    return packed(placed, values, model)


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters without their wrapping; one that wraps nothing is left out."""
    choices = {name: wrapped.WhichOneof("parameter_choice") for name, wrapped in parameters.items()}
    return {name: getattr(parameters[name], choice) for name, choice in choices.items() if choice}


def _wanted(card: ModelCard, request: Any) -> list[str]:
    for at, output in enumerate(request.outputs):
        checking.check_tensor_parameters(f"outputs[{at}]", output.parameters, card.name)
    return checking.wanted_outputs(card, [output.name for output in request.outputs])


def written_answer(card: ModelCard, request: GrpcCall, request_id: str, answer: InferAnswer) -> Any:
    """Return the response, with bytes of its own: nothing in it refers to shared memory any more."""
    outputs = {tensor.name: tensor for tensor in answer.outputs}
    response = message("ModelInferResponse")(model_name=card.name, model_version=card.version, id=request_id)
    for name in request.outputs:
        tensor = outputs[name]
        response.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(bytes(tensor.data))
    return response
