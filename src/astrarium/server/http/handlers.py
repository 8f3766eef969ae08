"""Handlers answer the paths of the HTTP protocol."""

from __future__ import annotations

from asyncio import to_thread
from urllib.parse import parse_qs

import msgspec

from astrarium.server.contract import Kind, ModelCard, Refused, Service
from astrarium.server.http import bodies
from astrarium.server.http.bodies import Body, BodyReader
from astrarium.server.http.forms import read_body, read_form
from astrarium.server.http.inference import (
    HttpCall,
    read_call,
    reads_slowly,
    timeline_header,
    writes_slowly,
    written_answer,
)
from astrarium.server.http.replies import Reply, json_reply
from astrarium.server.http.routing import LONG_WAY, HttpRequest
from astrarium.server.protocol import checking, model_answers, wire
from astrarium.server.protocol.checking import bad

DEFAULT_LAST = 1000
_NOT_READY = "server: no worker is up, it is shutting down, or every model refuses or fails all calls"


class Handlers:
    def __init__(self, service: Service, bodies: BodyReader) -> None:
        self._service = service
        self.bodies = bodies
        self.description = b""  # the OpenAPI document, once there are routes to describe

    async def pointers(self, _: HttpRequest) -> Reply:
        names = [card.name for card in self._service.cards()]
        links = {name: f"/v2/models/{name}" for name in names[:20]}
        look = {"description": "/openapi.json", "metrics": "/metrics", "timeline": "/timeline", **links}
        about = f"Astrarium serves {len(names)} models over the Open Inference Protocol v2"
        return json_reply(wire.Pointers(about, look))

    async def server(self, request: HttpRequest) -> Reply:
        return json_reply(model_answers.server_metadata(request.regions.allowed))

    async def live(self, _: HttpRequest) -> Reply:
        return json_reply(wire.Live(True))

    async def ready(self, _: HttpRequest) -> Reply:
        if not self._service.ready:
            raise Refused(Kind.UNAVAILABLE, _NOT_READY)
        return json_reply(wire.Ready(True))

    def _card(self, request: HttpRequest) -> ModelCard:
        card = self._service.card(request.names["model"])
        checking.check_version(card, request.names.get("version", ""))
        return card

    async def model(self, request: HttpRequest) -> Reply:
        return json_reply(model_answers.model_metadata(self._card(request)))

    async def model_ready(self, request: HttpRequest) -> Reply:
        card = self._card(request)
        state, reason = card.health
        if state != "READY":
            because = f": {reason}" if reason else ""
            raise Refused(Kind.UNAVAILABLE, f"model {card.name}: it is {state}{because}")
        return json_reply(wire.Ready(True))

    async def config(self, request: HttpRequest) -> Reply:
        return json_reply(model_answers.model_config(self._card(request)))

    async def statistics(self, request: HttpRequest) -> Reply:
        return json_reply(wire.StatisticsAnswer([self._service.statistics(self._card(request).name)]))

    async def all_statistics(self, _: HttpRequest) -> Reply:
        cards = self._service.cards()
        return json_reply(wire.StatisticsAnswer([self._service.statistics(card.name) for card in cards]))

    async def infer(self, request: HttpRequest) -> Reply:
        if reason := request.scope.get(LONG_WAY):
            self._service.went_long_way(reason)
        card = self._card(request)
        body = await read_body(self.bodies, request)
        try:
            return await self._inferred(card, request, body)
        finally:
            self.bodies.let_go(body)

    async def _inferred(self, card: ModelCard, request: HttpRequest, body: Body) -> Reply:
        headers = request.headers
        http_call = await self._read_call(card, request, body)
        answer = await self._service.infer(http_call.call)
        try:
            if writes_slowly(http_call, answer):
                described_by, content = await to_thread(written_answer, card, http_call, answer)
            else:
                described_by, content = written_answer(card, http_call, answer)
        finally:
            answer.release()
        described_by += timeline_header(headers, answer)
        accepted = headers.get(b"accept-encoding")
        wanted = bodies.asked_encoding(accepted) if accepted else ""
        if not wanted:
            return Reply(200, described_by, content)
        described_by.append((b"content-encoding", wanted.encode()))
        return Reply(200, described_by, await bodies.compressed(content, wanted))

    async def _read_call(self, card: ModelCard, request: HttpRequest, body: Body) -> HttpCall:
        limit = self.bodies.limits.body_bytes
        reading = card, body, request.headers, request.received, limit, request.regions
        try:
            if reads_slowly(card, body, request.headers, request.regions):
                return await to_thread(read_call, *reading)
            return read_call(*reading)
        except Refused as refused:
            self._service.turned_away(card.name, refused)
            raise

    async def index(self, request: HttpRequest) -> Reply:
        form = await read_form(self.bodies, request, wire.IndexRequest)
        return json_reply(model_answers.index_entries(self._service.cards(), form.ready))

    async def load(self, request: HttpRequest) -> Reply:
        form = await read_form(self.bodies, request, wire.ChangeRequest)
        card = self._card(request)
        checking.check_load_parameters(form.parameters, card.name)
        await self._service.load(card.name)
        return json_reply({})

    async def unload(self, request: HttpRequest) -> Reply:
        await read_form(self.bodies, request, wire.ChangeRequest)
        await self._service.unload(self._card(request).name)
        return json_reply({})

    async def quarantine(self, request: HttpRequest) -> Reply:
        return json_reply(wire.Quarantine(self._service.quarantine(self._card(request).name)))

    async def release(self, request: HttpRequest) -> Reply:
        if query := request.scope.get("query_string", b""):
            raise bad("query", query[:80].decode("latin-1"), "none: all inputs of the model are let out")
        return json_reply(wire.Released(self._service.release(self._card(request).name)))

    async def metrics(self, _: HttpRequest) -> Reply:
        kind = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
        return Reply(200, [kind], self._service.metrics())

    async def timeline(self, request: HttpRequest) -> Reply:
        query = parse_qs(request.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        text = query.get("last", [str(DEFAULT_LAST)])[-1]
        try:
            last = msgspec.convert(text, wire.Last, strict=False)
        except msgspec.ValidationError as error:
            raise bad("last", text, str(error).removeprefix("Expected ")) from None
        trace = await to_thread(self._service.timeline, last)  # it may tell of thousands of calls
        return Reply(200, [(b"content-type", b"application/json")], trace)

    async def openapi(self, _: HttpRequest) -> Reply:
        return Reply(200, [(b"content-type", b"application/json")], self.description)
