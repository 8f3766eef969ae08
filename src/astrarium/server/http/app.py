"""The protocol over HTTP: an ASGI application over a Service."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from time import monotonic_ns
from typing import Any

from astrarium.server.contract import Refused, Service
from astrarium.server.http.bodies import BodyReader, Disconnected, Receive
from astrarium.server.http.handlers import Handlers
from astrarium.server.http.replies import (
    HttpRefusal,
    Reply,
    Send,
    http_refusal,
    json_reply,
    refusal,
    send_reply,
)
from astrarium.server.http.routes import routes_of
from astrarium.server.http.routing import RECEIVED, Request, Router
from astrarium.server.keys import Keys
from astrarium.server.settings import HttpLimits, Security
from astrarium.server.wire import ErrorAnswer

log = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
# Liveness and readiness are for load balancers, which have no key.
OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})


class HttpFront:
    """What uvicorn calls. Every request gets an answer, whatever goes wrong behind it."""

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
            return json_reply(ErrorAnswer(f"the server failed, not the request: {type(error).__name__}"), 500)

    async def _handled(self, scope: Scope, receive: Receive) -> Reply:
        received = scope.get(RECEIVED) or monotonic_ns()
        headers = dict(scope["headers"])
        path = scope["path"]
        if self.keys and path not in OPEN_PATHS:
            self.keys.check(headers)
        route, names = self.router.find(scope["method"], path)
        return await route.handler(Request(scope, headers, receive, received, names))


async def _without_http(scope: Scope, receive: Receive, send: Send) -> None:
    """There is nothing to start or stop here: who serves the application also owns the service."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
