"""The HTTP front is an ASGI application over a Service."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from astrarium.server.contract import Refused, Service
from astrarium.server.http import replies
from astrarium.server.http.bodies import BodyReader, Disconnected, Receive
from astrarium.server.http.handlers import Handlers
from astrarium.server.http.operations import routes_of
from astrarium.server.http.replies import HttpRefusal, Reply, Send
from astrarium.server.http.routing import RECEIVED, USER, HttpRequest, Router
from astrarium.server.protocol import wire
from astrarium.server.protocol.keys import Keys
from astrarium.server.protocol.regions import NO_REGIONS, UNKNOWN_USER, ClientRegions
from astrarium.server.settings import HttpLimits, Security

if TYPE_CHECKING:
    from astrarium._front import Regions

log = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
# Liveness and readiness are for load balancers, which have no key.
OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})


class HttpFront:
    """The HTTP front is what uvicorn calls; every request gets an answer, whatever goes wrong behind it."""

    def __init__(
        self,
        service: Service,
        limits: HttpLimits | None = None,
        security: Security | None = None,
        regions: Regions | None = None,
    ) -> None:
        self._regions = regions
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
        await replies.send_reply(send, reply)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        try:
            return await self._handled(scope, receive)
        except Refused as refused:
            return replies.refusal(refused)
        except HttpRefusal as refused:
            return replies.http_refusal(refused)
        except Disconnected:
            raise
        except Exception as error:
            log.exception("%s %s failed", scope["method"], scope["path"])
            return replies.json_reply(
                wire.ErrorAnswer(f"the server failed, not the request: {type(error).__name__}"), 500
            )

    async def _handled(self, scope: Scope, receive: Receive) -> Reply:
        received = scope.get(RECEIVED) or monotonic_ns()
        headers = dict(scope["headers"])
        path = scope["path"]
        if self.keys and path not in OPEN_PATHS:
            self.keys.check(headers)
        route, names = self.router.find(scope["method"], path)
        regions = self._regions_of(scope, headers)
        return await route.handler(HttpRequest(scope, headers, receive, received, names, regions))

    def _regions_of(self, scope: Scope, headers: Mapping[bytes, bytes]) -> ClientRegions:
        if self._regions is None or not self._regions.allowed:
            return NO_REGIONS
        key = self.keys.number(headers)
        return NO_REGIONS if key is None else ClientRegions(self._regions, scope.get(USER, _nobody), key)


def _nobody() -> int:
    return UNKNOWN_USER


async def _without_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Start and stop nothing: the server of the application also owns the service."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
