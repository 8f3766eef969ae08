"""The router finds the handler of a path: of several routes that fit, the first counts."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from astrarium.core.quantities import Time
from astrarium.server.http.replies import HttpRefusal, Reply
from astrarium.server.protocol.regions import NO_REGIONS, ClientRegions

# Of a scope, where the server can tell: when the request's first byte came, why it did not go the short way.
RECEIVED = "astrarium.received"
LONG_WAY = "astrarium.long_way"
USER = "astrarium.user"  # a function that says which user of this machine the client is


class HttpRequest(NamedTuple):
    """An HTTP request is what a handler needs to know, but for the body."""

    scope: Mapping[str, Any]
    headers: Mapping[bytes, bytes]
    receive: Callable[[], Awaitable[Any]]
    received: Time
    names: Mapping[str, str]  # of the path's segments
    regions: ClientRegions = NO_REGIONS


Handler = Callable[[HttpRequest], Awaitable[Reply]]


@dataclass(frozen=True)
class Route:
    """A route is one operation: `path` may hold `{names}`; the rest is for the OpenAPI document."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: type | None = None  # None: not JSON of ours
    body: type | None = None
    content: str = "application/json"
    statuses: tuple[int, ...] = ()  # beyond 200 and what any operation may answer
    open: bool = False  # needs no key
    query: Mapping[str, type] = field(default_factory=dict)


# paths, and characters of each: what strangers ask for must stay small
_REMEMBERED = 1024
_SHORT = 256


class Router:
    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._remembered = lru_cache(_REMEMBERED)(self._matched)
        self._methods: dict[str, dict[str, Route]] = {}  # by path
        for route in routes:
            self._methods.setdefault(route.path, {})[route.method] = route
        self._forms = {path: _form(path) for path in self._methods}

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        return (self._remembered if len(path) <= _SHORT else self._matched)(method, path)

    def _matched(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        for written, form in self._forms.items():
            if (fitting := form.fullmatch(path)) is not None:
                methods = self._methods[written]
                route = methods.get("GET" if method == "HEAD" else method)
                if method == "OPTIONS":
                    return _options(methods), {}
                if route is None:
                    raise _wrong_method(methods, method, path)
                return route, fitting.groupdict()
        raise HttpRefusal(404, f"path: expected one that GET /openapi.json lists (got {path[:200]!r})")


def _form(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)))


def _allowed(methods: Mapping[str, Route]) -> str:
    return ", ".join(sorted({"OPTIONS", *methods, *(["HEAD"] if "GET" in methods else [])}))


def _options(methods: Mapping[str, Route]) -> Route:
    """Return the route that says what a path can do."""

    async def options(_: HttpRequest) -> Reply:
        return Reply(200, [(b"allow", _allowed(methods).encode())], b"")

    return Route("OPTIONS", "", options, "What this path can do")


def _wrong_method(methods: Mapping[str, Route], method: str, path: str) -> HttpRefusal:
    allow = _allowed(methods)
    return HttpRefusal(405, f"{path[:200]}: expected {allow} (got {method[:20]})", {b"allow": allow.encode()})
