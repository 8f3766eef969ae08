"""What each path answers."""

from __future__ import annotations

from asyncio import to_thread
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec

from astrarium.server import wire
from astrarium.server.checking import bad, check_load_parameters, check_version
from astrarium.server.contract import Kind, ModelCard, Refused, Service
from astrarium.server.describing import (
    index_entries,
    model_config,
    model_metadata,
    server_metadata,
    statistics_answer,
)
from astrarium.server.http.bodies import Body, BodyReader, asked_encoding, compressed
from astrarium.server.http.infer import (
    Asked,
    read_call,
    reads_slowly,
    timeline_header,
    writes_slowly,
    written_answer,
)
from astrarium.server.http.json_tensors import check_keys, not_json
from astrarium.server.http.replies import HttpRefusal, Reply, json_reply
from astrarium.server.http.routing import LONG_WAY, Request
from astrarium.server.settings import LARGE

Form = TypeVar("Form")
# What bodies come as: JSON, JSON with binary tensors, and what curl says of `-d` by itself.
CONTENT_TYPES = (b"application/json", b"application/octet-stream", b"application/x-www-form-urlencoded")
DEFAULT_LAST = 1000
_NOT_READY = "server: its workers are not up yet, it is shutting down, or it has turned away all calls lately"


class Handlers:
    def __init__(self, service: Service, bodies: BodyReader) -> None:
        self._service, self._bodies = service, bodies
        self.description = b""  # the OpenAPI document, once there are routes to describe

    async def pointers(self, _: Request) -> Reply:
        names = [card.name for card in self._service.cards()]
        links = {name: f"/v2/models/{name}" for name in names[:20]}
        look = {"description": "/openapi.json", "metrics": "/metrics", "timeline": "/timeline", **links}
        about = f"Astrarium serves {len(names)} models over the Open Inference Protocol v2"
        return json_reply(wire.Pointers(about, look))

    async def server(self, _: Request) -> Reply:
        return json_reply(server_metadata())

    async def live(self, _: Request) -> Reply:
        return json_reply(wire.Live(True))

    async def ready(self, _: Request) -> Reply:
        if not self._service.ready:
            raise Refused(Kind.UNAVAILABLE, _NOT_READY)
        return json_reply(wire.Ready(True))

    def _card(self, request: Request) -> ModelCard:
        card = self._service.card(request.names["model"])
        check_version(card, request.names.get("version", ""))
        return card

    async def model(self, request: Request) -> Reply:
        return json_reply(model_metadata(self._card(request)))

    async def model_ready(self, request: Request) -> Reply:
        card = self._card(request)
        state, reason = card.health
        if state != "READY":
            because = f": {reason}" if reason else ""
            raise Refused(Kind.UNAVAILABLE, f"model {card.name}: it is {state}{because}")
        return json_reply(wire.Ready(True))

    async def config(self, request: Request) -> Reply:
        return json_reply(model_config(self._card(request)))

    async def statistics(self, request: Request) -> Reply:
        return json_reply(statistics_answer([self._service.statistics(self._card(request).name)]))

    async def all_statistics(self, _: Request) -> Reply:
        cards = self._service.cards()
        return json_reply(statistics_answer(self._service.statistics(card.name) for card in cards))

    async def infer(self, request: Request) -> Reply:
        if reason := request.scope.get(LONG_WAY):
            self._service.went_long_way(reason)
        card = self._card(request)
        body = await self._body(request)
        try:
            return await self._inferred(card, request, body)
        finally:
            self._bodies.let_go(body)

    async def _inferred(self, card: ModelCard, request: Request, body: Body) -> Reply:
        headers = request.headers
        asked = await self._asked(card, request, body)
        answer = await self._service.infer(asked.call)
        try:
            if writes_slowly(asked, answer):
                described_by, content = await to_thread(written_answer, card, asked, answer)
            else:
                described_by, content = written_answer(card, asked, answer)
        finally:
            answer.release()
        described_by += timeline_header(headers, answer)
        accepted = headers.get(b"accept-encoding")
        wanted = asked_encoding(accepted) if accepted else ""
        if not wanted:
            return Reply(200, described_by, content)
        described_by.append((b"content-encoding", wanted.encode()))
        return Reply(200, described_by, await compressed(content, wanted))

    async def _asked(self, card: ModelCard, request: Request, body: Body) -> Asked:
        given = card, body, request.headers, request.received, self._bodies.limits.body_bytes
        try:
            if reads_slowly(card, body, request.headers):
                return await to_thread(read_call, *given)
            return read_call(*given)
        except Refused as refused:
            self._service.turned_away(card.name, refused)
            raise

    async def _body(self, request: Request) -> Body:
        content_type = request.headers.get(b"content-type")
        if content_type is not None and content_type.lower() not in CONTENT_TYPES:
            _check_content_type(content_type.decode("latin-1"))
        return await self._bodies.read(request.headers, request.receive)

    async def _form(self, request: Request, form: type[Form]) -> Form:
        """The body as *form*; an empty one is the form with nothing filled in."""
        body = await self._body(request)
        self._bodies.let_go(body)
        if len(body) > LARGE:
            raise Refused(Kind.TOO_LARGE, f"body: expected at most {LARGE} bytes here (got {len(body)})")
        try:
            given = body.strip() or b"{}"
            found = msgspec.json.decode(given, type=form)
            check_keys(given)
            return found
        except RecursionError:
            raise bad("body", None, "JSON that is not nested this deep") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise not_json(body, error) from None

    async def index(self, request: Request) -> Reply:
        form = await self._form(request, wire.IndexRequest)
        return json_reply(index_entries(self._service.cards(), form.ready))

    async def load(self, request: Request) -> Reply:
        form, card = await self._form(request, wire.ChangeRequest), self._card(request)
        check_load_parameters(form.parameters, card.name)
        await self._service.load(card.name)
        return json_reply({})

    async def unload(self, request: Request) -> Reply:
        await self._form(request, wire.ChangeRequest)
        await self._service.unload(self._card(request).name)
        return json_reply({})

    async def metrics(self, _: Request) -> Reply:
        kind = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
        return Reply(200, [kind], self._service.metrics())

    async def timeline(self, request: Request) -> Reply:
        query = parse_qs(request.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = query.get("last", [str(DEFAULT_LAST)])[-1]
        try:
            last = msgspec.convert(given, wire.Last, strict=False)
        except msgspec.ValidationError as error:
            raise bad("last", given, str(error).removeprefix("Expected ")) from None
        trace = await to_thread(self._service.timeline, last)  # it may tell of thousands of calls
        return Reply(200, [(b"content-type", b"application/json")], trace)

    async def openapi(self, _: Request) -> Reply:
        return Reply(200, [(b"content-type", b"application/json")], self.description)


def _check_content_type(given: str) -> None:
    """Whether the type is one of ours once its parameters are left out."""
    if given.partition(";")[0].strip().lower().encode("latin-1") not in CONTENT_TYPES:
        expected = "application/json or application/octet-stream"
        raise HttpRefusal(415, f"Content-Type: expected {expected} (got {given[:80]!r})")
