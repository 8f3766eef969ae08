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
from astrarium.server.protocol.regions import NO_REGIONS, ClientRegions, RegionPart, check_total
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
    places: Mapping[str, RegionPart] = {}  # of outputs that go to regions


def read_call(
    card: ModelCard,
    infer_message: InferMessage,
    tag: str,
    received: Time,
    remaining: float | None,
    limit: int,
    regions: ClientRegions = NO_REGIONS,
) -> GrpcCall:
    """Read a call, and of *regions*; *limit* is the most bytes that one tensor may have.

    The client's deadline leaves *remaining* seconds.
    """
    request = infer_message.request
    checking.check_version(card, request.model_version)
    tensors = _tensors(card, infer_message, limit, regions)
    options = checking.request_options(_plain(request.parameters), tag, card.name)
    rows = tensors[0].shape[0] if tensors else 1
    call = InferCall(card.name, tensors, rows, received, *options, _patience(remaining, card.name))
    return GrpcCall(call, _wanted(card, request), _places(card, request, rows, regions))


def _patience(remaining: float | None, model: str) -> Time | None:
    """Return how long the client waits, by the deadline that the call itself carries."""
    if remaining is None:
        return None
    if remaining <= 0:
        raise Refused(Kind.DEADLINE, f"model {model}: the call's own deadline has passed")
    return int(min(remaining * SECOND, FOREVER))


def _tensors(
    card: ModelCard, infer_message: InferMessage, limit: int, regions: ClientRegions
) -> list[Tensor]:
    inputs = infer_message.request.inputs
    placed = checking.placed_inputs(card, inputs, limit)
    parts = []
    for tensor, announced in zip(placed, inputs, strict=True):
        checking.check_tensor_parameters(tensor.field, announced.parameters, card.name)
        parameters = _plain(announced.parameters) if announced.parameters else {}
        parts.append(regions.input_part(tensor, parameters, limit, card.name))
    check_total(parts, limit, card.name)
    sent = [tensor for tensor, part in zip(placed, parts, strict=True) if part is None]
    contents = _contents_of(infer_message)
    for tensor, part in zip(placed, parts, strict=True):
        if part is not None and contents[tensor.at] is not None:
            expected = "either contents or parameters.shared_memory_region"
            raise bad(f"{tensor.field}.contents", "both", expected, card.name)
    data = iter(
        _raw(sent, infer_message.raw, contents, card.name)
        if infer_message.raw
        else _typed(sent, infer_message, card.name)
    )
    tensors = []
    for tensor, part in zip(placed, parts, strict=True):
        content = next(data) if part is None else part.read(card.name)
        if part is not None:
            checking.check_size(tensor, content, card.name)
        checking.check_values(tensor, content, card.name)
        tensors.append(Tensor(tensor.spec.name, tensor.spec.datatype, tensor.shape, content))
    return checking.in_card_order(card, tensors)


def _contents_of(infer_message: InferMessage) -> Sequence[object]:
    """Return for each input whether it has typed contents, or None where it has none."""
    inputs = infer_message.request.inputs
    return infer_message.contents or [one.HasField("contents") or None for one in inputs]


def _raw(
    placed: Sequence[CheckedTensor], raw: Sequence[Data], contents: Sequence[object], model: str
) -> Sequence[Data]:
    if len(raw) != len(placed):
        raise bad("raw_input_contents", f"{len(raw)} of them", f"one for each of {len(placed)} inputs", model)
    for tensor, data in zip(placed, raw, strict=True):
        if contents[tensor.at] is not None:
            raise bad(f"{tensor.field}.contents", "both", "either contents or raw_input_contents", model)
        checking.check_size(tensor, data, model)
    return raw


def _typed(placed: Sequence[CheckedTensor], infer_message: InferMessage, model: str) -> list[bytes]:
    if infer_message.contents is not None:
        return [_native(tensor, infer_message.contents[tensor.at] or b"", model) for tensor in placed]
    inputs = infer_message.request.inputs
    return [_contents(tensor, inputs[tensor.at].contents, model) for tensor in placed]


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
        part = request.places.get(name)
        response.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        if part is not None:
            part.write(tensor)
        response.raw_output_contents.append(bytes(tensor.data) if part is None else b"")
    return response


def _places(card: ModelCard, request: Any, rows: int, regions: ClientRegions) -> dict[str, RegionPart]:
    specs = {spec.name: spec for spec in card.outputs}
    places = {
        output.name: regions.output_part(
            specs[output.name], f"outputs[{at}]", _plain(output.parameters), rows, card.name
        )
        for at, output in enumerate(request.outputs)
        if output.parameters
    }
    return {name: part for name, part in places.items() if part is not None}
