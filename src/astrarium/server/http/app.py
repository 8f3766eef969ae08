"""The protocol over HTTP is an ASGI application over a Service."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from time import monotonic_ns
from typing import Any

from astrarium.server import wire
from astrarium.server.contract import Refused, Service
from astrarium.server.http.bodies import (
    BodyReader,
    Disconnected,
    HttpRefusal,
    Receive,
    Reply,
    Send,
    http_refusal,
    json_reply,
    refusal,
    send_reply,
)
from astrarium.server.http.handlers import Handlers
from astrarium.server.http.routing import RECEIVED, HttpRequest, Route, Router, described
from astrarium.server.settings import HttpLimits, Keys, Security

# Every operation over HTTP, in the order in which the description lists them.


_ONE, _AT_VERSION = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
_CHANGE = "/v2/repository/models/{model}"
_CHANGE_FAILS: dict[str, Any] = {"answer": dict, "body": wire.ChangeRequest, "statuses": (429, 500, 503, 504)}
_INFER: dict[str, Any] = {
    "answer": wire.InferResponse,
    "body": wire.InferRequest,
    "statuses": (429, 500, 503, 504),
}


def routes_of(handlers: Handlers) -> list[Route]:
    routes = [
        *_about_the_server(handlers),
        Route("GET", "/v2/models/stats", handlers.all_statistics, "All statistics", wire.StatisticsAnswer),
        *_about_a_model(handlers, _ONE),
        *_about_a_model(handlers, _AT_VERSION),
        *_repository(handlers),
        *_watching(handlers),
    ]
    handlers.description = described(routes)
    return routes


def _about_the_server(h: Handlers) -> list[Route]:
    health: dict[str, Any] = {"open": True}
    return [
        Route("GET", "/", h.pointers, "What this is and where to look", wire.Pointers),
        Route("GET", "/v2", h.server, "Server metadata", wire.ServerMetadata),
        Route("GET", "/v2/health/live", h.live, "Is the process up?", wire.Live, **health),
        Route("GET", "/v2/health/ready", h.ready, "Ready?", wire.Ready, statuses=(503,), **health),
    ]


def _about_a_model(h: Handlers, base: str) -> list[Route]:
    return [
        Route("GET", base, h.model, "Model metadata", wire.ModelMetadata),
        Route("GET", f"{base}/ready", h.model_ready, "Is it loaded?", wire.Ready, statuses=(503,)),
        Route("GET", f"{base}/config", h.config, "Model configuration", wire.ModelConfig),
        Route("GET", f"{base}/stats", h.statistics, "Model statistics", wire.StatisticsAnswer),
        Route("POST", f"{base}/infer", h.infer, "Inference", **_INFER),
    ]


def _repository(h: Handlers) -> list[Route]:
    index: dict[str, Any] = {"answer": list[wire.IndexEntry], "body": wire.IndexRequest}
    return [
        Route("POST", "/v2/repository/index", h.index, "All models and their states", **index),
        Route("POST", f"{_CHANGE}/load", h.load, "Load a model, or load it anew", **_CHANGE_FAILS),
        Route("POST", f"{_CHANGE}/unload", h.unload, "Unload a model", **_CHANGE_FAILS),
    ]


def _watching(h: Handlers) -> list[Route]:
    last: dict[str, Any] = {"answer": dict, "query": {"last": wire.Last}}
    return [
        Route("GET", "/metrics", h.metrics, "Prometheus metrics", content="text/plain"),
        Route("GET", "/timeline", h.timeline, "The last requests and batches, for Perfetto", **last),
        Route("GET", "/openapi.json", h.openapi, "This description", dict),
    ]


log = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
# Liveness and readiness are for load balancers, which have no key.
OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})


class HttpFront:
    """The HTTP front is what uvicorn calls; every request gets an answer, whatever goes wrong behind it."""

    def __init__(
        self, service: Service, limits: HttpLimits | None = None, security: Security | None = None
    ) -> None:
        self.keys = Keys((security or Security()).keys)
        self.bodies = BodyReader(limits or HttpLimits())
        self.router = Router(routes_of(Handlers(service, self.bodies)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _without_http(scope, receive, send)
            return
        try:
            reply = await self._answer(scope, receive)
        except Disconnected:
            return
        await send_reply(send, reply)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        try:
            return await self._handled(scope, receive)
        except Refused as refused:
            return refusal(refused)
        except HttpRefusal as refused:
            return http_refusal(refused)
        except Disconnected:
            raise
        except Exception as error:
            log.exception("%s %s failed", scope["method"], scope["path"])
            return json_reply(
                wire.ErrorAnswer(f"the server failed, not the request: {type(error).__name__}"), 500
            )

    async def _handled(self, scope: Scope, receive: Receive) -> Reply:
        received = scope.get(RECEIVED) or monotonic_ns()
        headers = dict(scope["headers"])
        path = scope["path"]
        if self.keys and path not in OPEN_PATHS:
            self.keys.check(headers)
        route, names = self.router.find(scope["method"], path)
        return await route.handler(HttpRequest(scope, headers, receive, received, names))


async def _without_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Start and stop nothing: the server of the application also owns the service."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
