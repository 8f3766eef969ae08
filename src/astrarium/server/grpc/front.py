"""The protocol over gRPC is the methods of GRPCInferenceService over a Service."""

from __future__ import annotations

import logging
from asyncio import to_thread
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import grpc
import msgspec

from astrarium.server.contract import ModelCard, Refused, Service
from astrarium.server.grpc import messages
from astrarium.server.grpc.errors import Context, Metadata, abort, metadata_of, our_fault
from astrarium.server.grpc.inference import read_call, written_answer
from astrarium.server.grpc.messages import message
from astrarium.server.grpc.native_call import NativeContext
from astrarium.server.grpc.region_methods import region_methods
from astrarium.server.grpc.requests import InferMessage, Unreadable, read_infer, read_message
from astrarium.server.grpc.streams import answered
from astrarium.server.process.logs import ThrottledWarnings
from astrarium.server.protocol import checking, model_answers, wire
from astrarium.server.protocol.keys import Keys
from astrarium.server.protocol.regions import NO_REGIONS, UNKNOWN_USER, ClientRegions
from astrarium.server.settings import HttpLimits
from astrarium.server.stage_line import stage_line

if TYPE_CHECKING:
    from astrarium._front import Regions

log = logging.getLogger(__name__)


Answering = Callable[[Any, Context], Awaitable[Any]]
OPEN_METHODS = frozenset({"ServerLive", "ServerReady"})


class GrpcFront:
    def __init__(
        self, service: Service, limits: HttpLimits, keys: Keys, regions: Regions | None = None
    ) -> None:
        self._regions = regions
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
            **region_methods(self._regions_of),
        }

    def _unary(self, name: str, answering: Answering) -> Any:
        guarded = self._keys and name not in OPEN_METHODS
        with_tensors = name == "ModelInfer"
        read = read_infer if with_tensors else partial(read_message, f"{name}Request")

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
        if isinstance(refused, Unreadable):
            self._unreadable.warning("%s from %s: %s", method, context.peer(), refused.reason)

    def _card(self, name: str, version: str) -> ModelCard:
        card = self._service.card(name)
        checking.check_version(card, version)
        return card

    def _regions_of(self, context: Context) -> ClientRegions:
        key = self._keys.number(metadata_of(context))
        if self._regions is None or key is None:
            return NO_REGIONS
        user = context.user if isinstance(context, NativeContext) else UNKNOWN_USER
        return ClientRegions(self._regions, lambda: user, key)

    async def server_live(self, _: Any, __: Context) -> Any:
        return message("ServerLiveResponse")(live=True)

    async def server_ready(self, _: Any, __: Context) -> Any:
        return message("ServerReadyResponse")(ready=self._service.ready)

    async def model_ready(self, request: Any, _: Context) -> Any:
        card = self._card(request.name, request.version)
        return message("ModelReadyResponse")(ready=card.health[0] == "READY")

    async def server_metadata(self, _: Any, context: Context) -> Any:
        metadata = model_answers.server_metadata(self._regions_of(context).allowed)
        return _message("ServerMetadataResponse", metadata)

    async def model_metadata(self, request: Any, _: Context) -> Any:
        card = self._card(request.name, request.version)
        # The protocol's tensors have no parameters over gRPC; those of the configuration tell the same.
        metadata = msgspec.to_builtins(model_answers.model_metadata(card))
        for tensor in metadata["inputs"]:
            tensor.pop("parameters", None)
        return messages.filled("ModelMetadataResponse", metadata)

    async def model_config(self, request: Any, _: Context) -> Any:
        card = self._card(request.name, request.version)
        return _message("ModelConfigResponse", {"config": model_answers.model_config(card)})

    async def model_statistics(self, request: Any, _: Context) -> Any:
        cards = [self._card(request.name, request.version)] if request.name else self._service.cards()
        answer = wire.StatisticsAnswer([self._service.statistics(card.name) for card in cards])
        return _message("ModelStatisticsResponse", answer)

    async def repository_index(self, request: Any, _: Context) -> Any:
        models = model_answers.index_entries(self._service.cards(), request.ready)
        return _message("RepositoryIndexResponse", {"models": models})

    async def repository_model_load(self, request: Any, _: Context) -> Any:
        card = self._service.card(request.model_name)
        checking.check_load_parameters(request.parameters, card.name)
        await self._service.load(card.name)
        return message("RepositoryModelLoadResponse")()

    async def repository_model_unload(self, request: Any, _: Context) -> Any:
        await self._service.unload(self._service.card(request.model_name).name)
        return message("RepositoryModelUnloadResponse")()

    async def model_infer(self, infer_message: InferMessage, context: Context) -> Any:
        received = monotonic_ns()
        metadata = metadata_of(context)
        way = _long_way(context)
        response, timeline = await self._inferred(
            infer_message, metadata, received, context.time_remaining(), way, self._regions_of(context)
        )
        if timeline:
            context.set_trailing_metadata((("x-astrarium-timeline", timeline),))
        return response

    async def _inferred(
        self,
        infer_message: InferMessage,
        metadata: Metadata,
        received: int,
        remaining: float | None,
        way: str,
        regions: ClientRegions,
    ) -> tuple[Any, str]:
        self._service.went_long_way(way)
        request = infer_message.request
        card = self._service.card(request.model_name)
        tag = metadata.get(b"x-astrarium-application", b"").decode("latin-1")
        reading = card, infer_message, tag, received, remaining, self._limits.body_bytes, regions
        try:
            slow = infer_message.reads_slowly(card)
            grpc_call = await to_thread(read_call, *reading) if slow else read_call(*reading)
        except Refused as refused:
            self._service.turned_away(card.name, refused)
            raise
        answer = await self._service.infer(grpc_call.call)
        try:
            writing = card, grpc_call, request.id, answer
            response = (
                await to_thread(written_answer, *writing) if grpc_call.places else written_answer(*writing)
            )
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

        way = _long_way(context)
        regions = self._regions_of(context)

        async def answering(infer_message: InferMessage) -> Any:
            remaining = context.time_remaining()
            now = monotonic_ns()
            response, _ = await self._inferred(infer_message, metadata, now, remaining, way, regions)
            return response

        def reading(data: bytes) -> InferMessage:
            try:
                return read_infer(data)
            except Refused as refused:
                self._tell_of(refused, "ModelStreamInfer", context)
                raise

        async for response in answered(requests, reading, answering):
            yield response


def _long_way(context: Context) -> str:
    """Return why a call was not read by a network thread."""
    return context.long_way if isinstance(context, NativeContext) else "grpc"


def _serialized(response: Any) -> bytes:
    written: bytes = response.SerializeToString()
    return written


def _message(name: str, content: object) -> Any:
    return messages.filled(name, msgspec.to_builtins(content))
