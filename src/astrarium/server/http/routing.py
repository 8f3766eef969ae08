"""The router finds the handler of a path in a tree of path segments: literals first, then `{names}`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from astrarium.core.units import Time
from astrarium.server.http.bodies import HttpRefusal, Reply

# Of a scope, where the server can tell: when the request's first byte came, why it did not go the short way.
RECEIVED, LONG_WAY = "astrarium.received", "astrarium.long_way"


class HttpRequest(NamedTuple):
    """An HTTP request is what a handler needs to know, but for the body."""

    scope: Mapping[str, Any]
    headers: Mapping[bytes, bytes]
    receive: Callable[[], Awaitable[Any]]
    received: Time
    names: Mapping[str, str]  # of the path's segments


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


@dataclass
class _Node:
    literals: dict[str, _Node] = field(default_factory=dict)
    named: dict[str, _Node] = field(default_factory=dict)
    methods: dict[str, Route] = field(default_factory=dict)


_REMEMBERED, _SHORT = 1024, 256  # paths, and characters of each: what strangers ask for must stay small


class Router:
    def __init__(self, routes: list[Route]) -> None:
        self.routes, self._root = routes, _Node()
        self._remembered = lru_cache(_REMEMBERED)(self._found)
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            named = segment.startswith("{")
            children, key = (node.named, segment[1:-1]) if named else (node.literals, segment)
            node = children.setdefault(key, _Node())
        node.methods[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        return (self._remembered if len(path) <= _SHORT else self._found)(method, path)

    def _found(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        names: dict[str, str] = {}
        node = _descend(self._root, path.split("/"), 1, names)
        if node is None:
            raise HttpRefusal(404, f"path: expected one that GET /openapi.json lists (got {path[:200]!r})")
        route = node.methods.get("GET" if method == "HEAD" else method)
        if route is None:
            raise _wrong_method(node, method, path)
        return route, names


def _descend(node: _Node, segments: list[str], at: int, names: dict[str, str]) -> _Node | None:
    if at == len(segments):
        return node if node.methods else None
    literal = node.literals.get(segments[at])
    found = _descend(literal, segments, at + 1, names) if literal else None
    if found is not None or not segments[at]:
        return found
    for name, child in node.named.items():
        found = _descend(child, segments, at + 1, names)
        if found is not None:
            names[name] = segments[at]
            return found
    return None


def _wrong_method(node: _Node, method: str, path: str) -> HttpRefusal:
    allowed = sorted({*node.methods, "HEAD"} if "GET" in node.methods else {*node.methods})
    allow = ", ".join(allowed)
    return HttpRefusal(405, f"{path[:200]}: expected {allow} (got {method[:20]})", {b"allow": allow.encode()})
