"""One inference over gRPC: a message becomes a call, its answer becomes a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from astrarium.core.units import FOREVER, SECOND, Time
from astrarium.engines.tensors import Tensor
from astrarium.server.checking import (
    Placed,
    bad,
    check_size,
    check_tensor_parameters,
    check_version,
    in_card_order,
    placed_inputs,
    wanted_outputs,
    wishes,
)
from astrarium.server.contract import InferAnswer, InferCall, Kind, ModelCard, Refused
from astrarium.server.grpc.messages import message
from astrarium.server.http.json_tensors import packed

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


class Asked(NamedTuple):
    call: InferCall
    outputs: list[str]


def read_call(
    card: ModelCard, request: Any, tag: str, received: Time, remaining: float | None, limit: int
) -> Asked:
    """*remaining* is what the client's own deadline leaves, in seconds; *limit* is of a tensor, in bytes."""
    check_version(card, request.model_version)
    tensors = _tensors(card, request, limit)
    wish = wishes(_plain(request.parameters), tag, card.name)
    rows = tensors[0].shape[0] if tensors else 1
    wished = wish.timeout, wish.priority, wish.application
    call = InferCall(card.name, tensors, rows, received, *wished, _patience(remaining, card.name))
    return Asked(call, _wanted(card, request))


def _patience(remaining: float | None, model: str) -> Time | None:
    """From the deadline that the call itself carries."""
    if remaining is None:
        return None
    if remaining <= 0:
        raise Refused(Kind.DEADLINE, f"model {model}: the call's own deadline has passed")
    return int(min(remaining * SECOND, FOREVER))


def _tensors(card: ModelCard, request: Any, limit: int) -> list[Tensor]:
    placed = placed_inputs(card, request.inputs, limit)
    for each, given in zip(placed, request.inputs, strict=True):
        check_tensor_parameters(each.field, given.parameters, card.name)
    raw = request.raw_input_contents
    data = _raw(placed, request, card.name) if raw else _typed(placed, request.inputs, card.name)
    tensors = [
        Tensor(each.spec.name, each.spec.datatype, each.shape, content)
        for each, content in zip(placed, data, strict=True)
    ]
    return in_card_order(card, tensors)


def _raw(placed: Sequence[Placed], request: Any, model: str) -> Sequence[bytes]:
    raw: Sequence[bytes] = list(request.raw_input_contents)
    if len(raw) != len(placed):
        raise bad("raw_input_contents", f"{len(raw)} of them", f"one for each of {len(placed)} inputs", model)
    for each, given, data in zip(placed, request.inputs, raw, strict=True):
        if given.HasField("contents"):
            raise bad(f"{each.field}.contents", "both", "either contents or raw_input_contents", model)
        check_size(each, data, model)
    return raw


def _typed(placed: Sequence[Placed], inputs: Sequence[Any], model: str) -> list[bytes]:
    return [_contents(each, given.contents, model) for each, given in zip(placed, inputs, strict=True)]


def _contents(placed: Placed, contents: Any, model: str) -> bytes:
    field = _CONTENTS.get(placed.spec.datatype)
    if field is None:
        expected = f"raw_input_contents: {placed.spec.datatype} has no typed contents"
        raise bad(f"{placed.field}.contents", None, expected, model)
    others = [descriptor.name for descriptor, _ in contents.ListFields() if descriptor.name != field]
    values = getattr(contents, field)
    if others or len(values) != placed.elements:
        expected = f"{placed.elements} elements in {field} for shape {list(placed.shape)}"
        got = f"{len(values)}" + (f", and some in {', '.join(others)}" if others else "")
        raise bad(f"{placed.field}.contents", got, expected, model)
    return packed(placed, values, model)


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without their wrapping; one that wraps nothing is not there."""
    choices = {name: wrapped.WhichOneof("parameter_choice") for name, wrapped in parameters.items()}
    return {name: getattr(parameters[name], choice) for name, choice in choices.items() if choice}


def _wanted(card: ModelCard, request: Any) -> list[str]:
    for at, output in enumerate(request.outputs):
        check_tensor_parameters(f"outputs[{at}]", output.parameters, card.name)
    return wanted_outputs(card, [output.name for output in request.outputs])


def written_answer(card: ModelCard, asked: Asked, request_id: str, answer: InferAnswer) -> Any:
    """The response, with bytes of its own: nothing in it refers to shared memory any more."""
    given = {tensor.name: tensor for tensor in answer.outputs}
    response = message("ModelInferResponse")(model_name=card.name, model_version=card.version, id=request_id)
    for name in asked.outputs:
        tensor = given[name]
        response.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(bytes(tensor.data))
    return response
