"""The protocol over gRPC is the methods of GRPCInferenceService over a Service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import to_thread
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from math import ceil
from time import monotonic_ns
from typing import Any, NamedTuple, NoReturn

import grpc
import msgspec

from astrarium.core.optional import extension
from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.server import checking, wire
from astrarium.server.checking import CheckedTensor, bad
from astrarium.server.contract import InferAnswer, InferCall, Kind, ModelCard, Refused, Service
from astrarium.server.grpc import messages
from astrarium.server.grpc.messages import Data, Given, message
from astrarium.server.http.json_tensors import packed
from astrarium.server.logs import ThrottledWarnings
from astrarium.server.settings import HttpLimits, Keys
from astrarium.server.timelines import stage_line
from astrarium.serving.live.tensors import Tensor

# One inference over gRPC: a message becomes a call, its answer becomes a message.


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
    card: ModelCard, given: Given, tag: str, received: Time, remaining: float | None, limit: int
) -> GrpcCall:
    """Read a call; the client's deadline leaves *remaining* seconds, a tensor has at most *limit* bytes."""
    request = given.request
    checking.check_version(card, request.model_version)
    tensors = _tensors(card, given, limit)
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


def _tensors(card: ModelCard, given: Given, limit: int) -> list[Tensor]:
    inputs = given.request.inputs
    placed = checking.placed_inputs(card, inputs, limit)
    for each, one in zip(placed, inputs, strict=True):
        checking.check_tensor_parameters(each.field, one.parameters, card.name)
    data = _raw(placed, given, card.name) if given.raw else _typed(placed, given, card.name)
    tensors = []
    for each, content in zip(placed, data, strict=True):
        checking.check_values(each, content, card.name)
        tensors.append(Tensor(each.spec.name, each.spec.datatype, each.shape, content))
    return checking.in_card_order(card, tensors)


def _raw(placed: Sequence[CheckedTensor], given: Given, model: str) -> Sequence[Data]:
    raw = given.raw
    if len(raw) != len(placed):
        raise bad("raw_input_contents", f"{len(raw)} of them", f"one for each of {len(placed)} inputs", model)
    typed = given.contents or [one.HasField("contents") or None for one in given.request.inputs]
    for each, contents, data in zip(placed, typed, raw, strict=True):
        if contents is not None:
            raise bad(f"{each.field}.contents", "both", "either contents or raw_input_contents", model)
        checking.check_size(each, data, model)
    return raw


def _typed(placed: Sequence[CheckedTensor], given: Given, model: str) -> list[bytes]:
    if given.contents is not None:
        return [_native(each, data or b"", model) for each, data in zip(placed, given.contents, strict=True)]
    inputs = given.request.inputs
    return [_contents(each, one.contents, model) for each, one in zip(placed, inputs, strict=True)]


def _native(placed: CheckedTensor, data: Data, model: str) -> bytes:
    """Return the binary layout of typed contents as they came, of a request that is large."""
    field = _contents_field(placed, model)
    native = extension("_express")
    assert native is not None
    found: bytes | int = native.from_contents(data, placed.spec.datatype, placed.elements)
    if isinstance(found, bytes):
        return found
    expected = f"{placed.elements} elements in {field} for shape {list(placed.shape)}, and nothing else"
    raise bad(f"{placed.field}.contents", f"{found} that are right", expected, model)


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


def written_answer(card: ModelCard, asked: GrpcCall, request_id: str, answer: InferAnswer) -> Any:
    """Return the response, with bytes of its own: nothing in it refers to shared memory any more."""
    given = {tensor.name: tensor for tensor in answer.outputs}
    response = message("ModelInferResponse")(model_name=card.name, model_version=card.version, id=request_id)
    for name in asked.outputs:
        tensor = given[name]
        response.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(bytes(tensor.data))
    return response


# Refusals as gRPC status codes, and what comes with a call: its metadata.


Context = Any  # grpc.aio.ServicerContext, which comes without types
Metadata = Mapping[bytes, bytes]


def metadata_of(context: Context) -> Metadata:
    """Return the call's metadata, names and values as bytes, as HTTP's headers are."""
    return {
        key.encode(): value if isinstance(value, bytes) else value.encode()
        for key, value in context.invocation_metadata() or ()
    }


async def abort(context: Context, refused: Refused) -> NoReturn:
    trailing: tuple[tuple[str, str], ...] = ()
    if refused.retry_after is not None or refused.kind is Kind.OVERLOADED:
        wait = max(1, ceil((refused.retry_after or 0.0) * 1000))
        # The first is what gRPC's own retries obey.
        trailing = (("grpc-retry-pushback-ms", f"{wait}"), ("retry-after", f"{max(1, ceil(wait / 1000))}"))
    await context.abort(grpc.StatusCode[refused.kind.grpc], refused.reason, trailing)
    raise AssertionError("abort returned")


def our_fault(error: Exception) -> str:
    """Return what a client is told of a defect of ours: its kind; the log has the rest."""
    return f"the server failed, not the request: {type(error).__name__}"


# ModelStreamInfer: requests of a stream run side by side, and are answered in the order they came.


log = logging.getLogger(__name__)
DEPTH = 64  # requests of one stream that may be under way at once
Reading = Callable[[bytes], Given]
StreamAnswering = Callable[[Given], Awaitable[Any]]
_Queue = asyncio.Queue["asyncio.Task[Any] | None"]


async def answered(
    requests: AsyncIterator[bytes], reading: Reading, answering: StreamAnswering
) -> AsyncIterator[Any]:
    """Yield the responses to *requests*; an error belongs to its request, and the stream goes on."""
    under_way: _Queue = asyncio.Queue(DEPTH)
    reader = asyncio.create_task(_start_each(requests, partial(_response, reading, answering), under_way))
    try:
        while (task := await under_way.get()) is not None:
            yield await task
        await reader
    finally:
        await _cancel_all(reader, under_way)


async def _start_each(
    requests: AsyncIterator[bytes], respond: Callable[[bytes], Coroutine[Any, Any, Any]], under_way: _Queue
) -> None:
    try:
        async for data in requests:
            await under_way.put(asyncio.create_task(respond(data)))
    finally:
        # Where this fails for want of room, the writer is gone already.
        with contextlib.suppress(asyncio.CancelledError):
            await under_way.put(None)


async def _response(reading: Reading, answering: StreamAnswering, data: bytes) -> Any:
    response = message("ModelStreamInferResponse")()
    given = None
    try:
        given = reading(data)
        response.infer_response.CopyFrom(await answering(given))
    except Refused as refused:
        response.error_message = f"[{refused.kind.grpc}] {refused.reason}"
    except Exception as error:
        log.exception("a request of a stream failed")
        response.error_message = f"[INTERNAL] {our_fault(error)}"
    response.infer_response.id = "" if given is None else given.request.id
    response.infer_response.parameters["triton_final_response"].bool_param = True
    return response


async def _cancel_all(reader: asyncio.Task[None], under_way: _Queue) -> None:
    tasks: list[asyncio.Task[Any]] = [reader]
    while not under_way.empty():
        task = under_way.get_nowait()
        tasks += [task] if task is not None else []
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


Answering = Callable[[Any, Context], Awaitable[Any]]
OPEN_METHODS = frozenset({"ServerLive", "ServerReady"})


class GrpcFront:
    def __init__(self, service: Service, limits: HttpLimits, keys: Keys) -> None:
        self._service = service
        self._limits = limits
        self._keys = keys
        self._unreadable = ThrottledWarnings(log)

    def handler(self) -> Any:
        """Return the handler that a grpc server is given."""
        methods = {name: self._unary(name, answering) for name, answering in self._methods().items()}
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self.model_stream_infer, response_serializer=_serialized
        )
        return grpc.method_handlers_generic_handler(messages.SERVICE, methods)

    def _methods(self) -> dict[str, Answering]:
        return {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.model_infer,
            "ModelConfig": self.model_config,
            "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.repository_model_load,
            "RepositoryModelUnload": self.repository_model_unload,
        }

    def _unary(self, name: str, answering: Answering) -> Any:
        guarded = self._keys and name not in OPEN_METHODS
        with_tensors = name == "ModelInfer"
        read = messages.read_infer if with_tensors else partial(messages.read_message, f"{name}Request")

        async def call(data: bytes, context: Context) -> Any:
            try:
                if guarded:
                    self._keys.check(metadata_of(context))
                return await answering(read(data), context)
            except Refused as refused:
                self._tell_of(refused, name, context)
                await abort(context, refused)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                log.exception("%s failed", name)
                await context.abort(grpc.StatusCode.INTERNAL, our_fault(error))

        return grpc.unary_unary_rpc_method_handler(call, response_serializer=_serialized)

    def _tell_of(self, refused: Refused, method: str, context: Context) -> None:
        """Log a client that sends what is no message, now and then: it is broken, or no client at all."""
        if isinstance(refused, messages.Unreadable):
            self._unreadable.warning("%s from %s: %s", method, context.peer(), refused.reason)

    def _card(self, name: str, version: str) -> ModelCard:
        card = self._service.card(name)
        checking.check_version(card, version)
        return card

    async def server_live(self, _: Any, __: Context) -> Any:
        return message("ServerLiveResponse")(live=True)

    async def server_ready(self, _: Any, __: Context) -> Any:
        return message("ServerReadyResponse")(ready=self._service.ready)

    async def model_ready(self, request: Any, _: Context) -> Any:
        card = self._card(request.name, request.version)
        return message("ModelReadyResponse")(ready=card.health[0] == "READY")

    async def server_metadata(self, _: Any, __: Context) -> Any:
        return _message("ServerMetadataResponse", wire.server_metadata())

    async def model_metadata(self, request: Any, _: Context) -> Any:
        card = self._card(request.name, request.version)
        # The protocol's tensors have no parameters over gRPC; those of the configuration tell the same.
        metadata = msgspec.to_builtins(wire.model_metadata(card))
        for tensor in metadata["inputs"]:
            tensor.pop("parameters", None)
        return messages.filled("ModelMetadataResponse", metadata)

    async def model_config(self, request: Any, _: Context) -> Any:
        card = self._card(request.name, request.version)
        return _message("ModelConfigResponse", {"config": wire.model_config(card)})

    async def model_statistics(self, request: Any, _: Context) -> Any:
        asked = [self._card(request.name, request.version)] if request.name else self._service.cards()
        answer = wire.StatisticsAnswer([self._service.statistics(card.name) for card in asked])
        return _message("ModelStatisticsResponse", answer)

    async def repository_index(self, request: Any, _: Context) -> Any:
        models = wire.index_entries(self._service.cards(), request.ready)
        return _message("RepositoryIndexResponse", {"models": models})

    async def repository_model_load(self, request: Any, _: Context) -> Any:
        card = self._service.card(request.model_name)
        checking.check_load_parameters(request.parameters, card.name)
        await self._service.load(card.name)
        return message("RepositoryModelLoadResponse")()

    async def repository_model_unload(self, request: Any, _: Context) -> Any:
        await self._service.unload(self._service.card(request.model_name).name)
        return message("RepositoryModelUnloadResponse")()

    async def model_infer(self, given: Given, context: Context) -> Any:
        received = monotonic_ns()
        metadata = metadata_of(context)
        way = getattr(context, "long_way", "grpc")
        response, line = await self._inferred(given, metadata, received, context.time_remaining(), way)
        if line:
            context.set_trailing_metadata((("x-astrarium-timeline", line),))
        return response

    async def _inferred(
        self, given: Given, metadata: Metadata, received: int, remaining: float | None, way: str
    ) -> tuple[Any, str]:
        self._service.went_long_way(way)
        request = given.request
        card = self._service.card(request.model_name)
        tag = metadata.get(b"x-astrarium-application", b"").decode("latin-1")
        reading = card, given, tag, received, remaining, self._limits.body_bytes
        try:
            slow = given.reads_slowly(card)
            asked = await to_thread(read_call, *reading) if slow else read_call(*reading)
        except Refused as refused:
            self._service.turned_away(card.name, refused)
            raise
        answer = await self._service.infer(asked.call)
        try:
            response = written_answer(card, asked, request.id, answer)
        finally:
            answer.release()
        wants_line = metadata.get(b"x-astrarium-timeline") not in (None, b"", b"0")
        return response, stage_line(answer) if wants_line else ""

    async def model_stream_infer(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[Any]:
        metadata = metadata_of(context)
        try:
            self._keys.check(metadata)
        except Refused as refused:
            await abort(context, refused)

        way = getattr(context, "long_way", "grpc")

        async def answering(given: Given) -> Any:
            remaining = context.time_remaining()
            response, _ = await self._inferred(given, metadata, monotonic_ns(), remaining, way)
            return response

        def reading(data: bytes) -> Given:
            try:
                return messages.read_infer(data)
            except Refused as refused:
                self._tell_of(refused, "ModelStreamInfer", context)
                raise

        async for response in answered(requests, reading, answering):
            yield response


def _serialized(response: Any) -> bytes:
    written: bytes = response.SerializeToString()
    return written


def _message(name: str, content: object) -> Any:
    return messages.filled(name, msgspec.to_builtins(content))
