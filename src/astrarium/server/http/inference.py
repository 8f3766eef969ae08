"""One inference over HTTP: a body becomes a call, its answer becomes a body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from astrarium.core.quantities import Time
from astrarium.server.contract import InferAnswer, InferCall, ModelCard
from astrarium.server.http import json_tensors
from astrarium.server.http.bodies import Body
from astrarium.server.http.json_outline import Json, check_beside, check_keys, not_json, outline
from astrarium.server.http.replies import JSON, Headers
from astrarium.server.protocol import checking, wire
from astrarium.server.protocol.checking import CheckedTensor, bad
from astrarium.server.protocol.regions import NO_REGIONS, PREFIX, ClientRegions, RegionPart, check_total
from astrarium.server.settings import LARGE
from astrarium.server.stage_line import stage_line
from astrarium.serving.live.tensors import BYTES, Tensor

HEADER_LENGTH = b"inference-header-content-length"
APPLICATION = b"x-astrarium-application"
TIMELINE = b"x-astrarium-timeline"
_BINARY = (b"content-type", b"application/octet-stream")
_decode = msgspec.json.Decoder(wire.InferRequest).decode
_encode = msgspec.json.Encoder().encode


class HttpCall(NamedTuple):
    """An HTTP call is a call, and the form in which its client wants the answer."""

    call: InferCall
    id: str
    outputs: dict[str, bool]  # whether binary, in the order asked for
    places: Mapping[str, RegionPart] = {}  # of outputs that go to regions


def read_call(
    card: ModelCard,
    body: Body,
    headers: Mapping[bytes, bytes],
    received: Time,
    limit: int,
    regions: ClientRegions = NO_REGIONS,
) -> HttpCall:
    """Read a call from a body, and of *regions*; *limit* is the most bytes that one tensor may have."""
    json_size = _json_size(headers, body)
    request = _request(body, json_size)
    tensors = _tensors(card, request, memoryview(body)[json_size:], limit, regions)
    tag = headers.get(APPLICATION, b"").decode("latin-1")
    options = checking.request_options(request.parameters, tag, card.name)
    rows = tensors[0].shape[0] if tensors else 1
    call = InferCall(card.name, tensors, rows, received, *options)
    wanted = _wanted(card, request)
    places = _places(card, request, rows, regions)
    for spec in card.outputs:
        if wanted.get(spec.name) is False and spec.name not in places:
            json_tensors.check_in_json(spec, card.name)
    return HttpCall(call, request.id, wanted, places)


def reads_slowly(
    card: ModelCard, body: Body, headers: Mapping[bytes, bytes], regions: ClientRegions = NO_REGIONS
) -> bool:
    """Whether a request takes so long to read that a thread should: the event loop has others to serve."""
    if len(body) <= LARGE:
        return regions.allowed and PREFIX.encode() in body
    looked_at = any(spec.datatype == BYTES or spec.is_limited for spec in card.inputs)
    return looked_at or _json_size(headers, body) > LARGE


def writes_slowly(call: HttpCall, answer: InferAnswer) -> bool:
    """Whether an answer takes so long to write, in JSON or into regions, that a thread should."""
    if call.places:
        return True
    in_json = [tensor for tensor in answer.outputs if call.outputs.get(tensor.name) is False]
    return sum(len(tensor.data) for tensor in in_json) > LARGE


def _json_size(headers: Mapping[bytes, bytes], body: Body) -> int:
    header = headers.get(HEADER_LENGTH)
    if header is None:
        return len(body)
    if not header.isdigit() or len(header) > 18 or int(header) > len(body):
        expected = f"the length of the JSON, at most that of the body ({len(body)})"
        raise bad("Inference-Header-Content-Length", header[:40].decode("latin-1"), expected)
    return int(header)


def _request(body: Body, size: int) -> wire.InferRequest:
    """Read a request's JSON; of a large one, only what is beside the elements of its tensors."""
    json = body if size == len(body) else memoryview(body)[:size]
    try:
        return _small(json) if size <= LARGE else _large(json)
    except RecursionError:
        raise bad("body", None, "JSON that is not nested this deep") from None


def _small(json: Json) -> wire.InferRequest:
    request = _decoded(json)
    check_keys(outline(json).text)
    return request


def _large(json: Json) -> wire.InferRequest:
    text, pieces = outline(json)
    request = _decoded(text)
    if pieces is None:
        elements = (memoryview(one.data) for one in request.inputs if one.data is not UNSET)
        check_beside(len(text) - sum(map(len, elements)))
    check_keys(text)
    for tensor in request.inputs:
        if pieces is not None and tensor.data is not UNSET:
            tensor.data = pieces[int(tensor.data)]
    return request


def _decoded(json: Json) -> wire.InferRequest:
    try:
        return _decode(json)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise not_json(json, error) from None


def _tensors(
    card: ModelCard, request: wire.InferRequest, binary: memoryview, limit: int, regions: ClientRegions
) -> list[Tensor]:
    tensors = []
    at = 0
    inputs = request.inputs
    checked = checking.placed_inputs(card, inputs, limit)
    parts = [
        regions.input_part(placed, announced.parameters, limit, card.name) if announced.parameters else None
        for placed, announced in zip(checked, inputs, strict=True)
    ]
    check_total(parts, limit, card.name)
    for placed, announced, part in zip(checked, inputs, parts, strict=True):
        size = _binary_size(announced, placed, card.name) if announced.parameters else None
        if part is not None:
            data: bytes | memoryview = _data_in_region(announced, placed, part, card.name)
        elif size is None:
            data = _json_data(announced, placed, card.name)
        else:
            data = _binary_data(announced, placed, binary[at : at + size], card.name)
            at += size
        checking.check_values(placed, data, card.name)
        tensors.append(Tensor(placed.spec.name, placed.spec.datatype, placed.shape, data))
    if at != len(binary):
        raise bad("body", f"{len(binary)} bytes after the JSON", f"{at}, as binary_data_size says", card.name)
    return checking.in_card_order(card, tensors)


def _binary_size(announced: wire.InputTensor, placed: CheckedTensor, model: str) -> int | None:
    checking.check_tensor_parameters(placed.field, announced.parameters, model)
    size = announced.parameters.get("binary_data_size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
        raise bad(f"{placed.field}.parameters.binary_data_size", size, "a whole number of bytes", model)
    return size


def _data_in_region(
    announced: wire.InputTensor, placed: CheckedTensor, part: RegionPart, model: str
) -> bytes:
    if announced.data is not UNSET or "binary_data_size" in announced.parameters:
        raise bad(
            placed.field, "both", "either data in the request or parameters.shared_memory_region", model
        )
    data = part.read(model)
    checking.check_size(placed, data, model)
    return data


def _json_data(announced: wire.InputTensor, placed: CheckedTensor, model: str) -> bytes:
    if announced.data is UNSET:
        raise bad(placed.field, "neither", "either data or parameters.binary_data_size", model)
    return json_tensors.from_json(announced.data, placed, model)


def _binary_data(
    announced: wire.InputTensor, placed: CheckedTensor, data: memoryview, model: str
) -> memoryview:
    if announced.data is not UNSET:
        raise bad(placed.field, "both", "either data or parameters.binary_data_size", model)
    # Fewer bytes than binary_data_size says are also fewer than the shape.
    checking.check_size(placed, data, model)
    return data


def _wanted(card: ModelCard, request: wire.InferRequest) -> dict[str, bool]:
    default = _flag(request.parameters, "binary_data_output", False, "parameters", card.name)
    if not request.outputs:
        return {spec.name: default for spec in card.outputs}
    names = checking.wanted_outputs(card, [output.name for output in request.outputs])
    for at, output in enumerate(request.outputs):
        checking.check_tensor_parameters(f"outputs[{at}]", output.parameters, card.name)
    return {
        name: _flag(output.parameters, "binary_data", default, f"outputs[{at}].parameters", card.name)
        for at, (name, output) in enumerate(zip(names, request.outputs, strict=True))
    }


def _places(
    card: ModelCard, request: wire.InferRequest, rows: int, regions: ClientRegions
) -> dict[str, RegionPart]:
    specs = {spec.name: spec for spec in card.outputs}
    places = {
        output.name: regions.output_part(
            specs[output.name], f"outputs[{at}]", output.parameters, rows, card.name
        )
        for at, output in enumerate(request.outputs)
        if output.parameters
    }
    return {name: part for name, part in places.items() if part is not None}


def _flag(parameters: wire.Parameters, name: str, default: bool, field: str, model: str) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise bad(f"{field}.{name}", value, "true or false", model)
    return value


def written_answer(card: ModelCard, call: HttpCall, answer: InferAnswer) -> tuple[Headers, bytes]:
    """Return the answer's body and headers; nothing in them refers to shared memory any more."""
    tensors = {tensor.name: tensor for tensor in answer.outputs}
    for name, part in call.places.items():
        part.write(tensors[name])
    in_body = {name: is_binary for name, is_binary in call.outputs.items() if name not in call.places}
    binary = [tensors[name].data for name, is_binary in in_body.items() if is_binary]
    outputs = [_output(tensors[name], in_body.get(name)) for name in call.outputs]
    json = _encode(wire.InferResponse(card.name, card.version, outputs, call.id))
    if not binary:
        return [JSON], json
    return [_BINARY, (HEADER_LENGTH, b"%d" % len(json))], b"".join([json, *binary])


def _output(tensor: Tensor, binary: bool | None) -> wire.OutputTensor:
    """Return how an answer tells an output; *binary* is None for one in a region: no more is said of it."""
    shape = list(tensor.shape)
    if binary is None:
        return wire.OutputTensor(tensor.name, tensor.datatype, shape)
    if binary:
        return wire.OutputTensor(
            tensor.name, tensor.datatype, shape, parameters={"binary_data_size": len(tensor.data)}
        )
    return wire.OutputTensor(tensor.name, tensor.datatype, shape, json_tensors.to_json(tensor))


def timeline_header(headers: Mapping[bytes, bytes], answer: InferAnswer) -> Headers:
    """Return a header with how long each stage took, for clients that ask."""
    if headers.get(TIMELINE) in (None, b"0", b""):
        return []
    return [(TIMELINE, stage_line(answer).encode())]
