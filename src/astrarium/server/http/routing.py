"""The router finds the handler of a path: of several routes that fit, the first counts."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from astrarium import __version__
from astrarium.core.quantities import Time
from astrarium.server.http.bodies import HttpRefusal, Reply
from astrarium.server.wire import ErrorAnswer, InferRequest, InferResponse

# Of a scope, where the server can tell: when the request's first byte came, why it did not go the short way.
RECEIVED = "astrarium.received"
LONG_WAY = "astrarium.long_way"


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


# paths, and characters of each: what strangers ask for must stay small
_REMEMBERED = 1024
_SHORT = 256


class Router:
    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._remembered = lru_cache(_REMEMBERED)(self._found)
        self._methods: dict[str, dict[str, Route]] = {}  # by path
        for route in routes:
            self._methods.setdefault(route.path, {})[route.method] = route
        self._forms = {path: _form(path) for path in self._methods}

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        return (self._remembered if len(path) <= _SHORT else self._found)(method, path)

    def _found(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
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


# The OpenAPI description of the HTTP protocol is made from the routes and the structures they speak.


_NAMES = re.compile(r"{(\w+)}")
_REF = "#/components/schemas/{name}"
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_REASONS = {
    400: "The request cannot be used; the error says which field, what it holds and what would be right",
    401: "No key, or one that the server does not know",
    404: "No such path, model or version",
    405: "The path has no such method",
    408: "The body did not arrive in time",
    413: "The body or a tensor is larger than the server takes",
    415: "A type or an encoding of content that the server does not read",
    422: "The same input has broken a worker, and is refused for a while",
    429: "Too much is waiting already: try again after Retry-After",
    500: "The model failed",
    503: "The model is not loaded, or the server is starting or shutting down",
    504: "The deadline can no longer be met",
}
_WITH_BODY = (400, 408, 413, 415)


def described(routes: Sequence[Route]) -> bytes:
    paths: dict[str, dict[str, Any]] = {}
    components = _components(routes)
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Astrarium: Open Inference Protocol v2", "version": __version__},
        "security": [{"bearer": []}, {"key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
    return msgspec.json.encode(document)


def _components(routes: Sequence[Route]) -> dict[str, Any]:
    types = [kind for route in routes for kind in (route.answer, route.body) if kind is not None]
    _, components = msgspec.json.schema_components([*types, ErrorAnswer], ref_template=_REF)
    for tensor in ("InputTensor", "OutputTensor"):
        components[tensor]["properties"]["data"] = _elements(tensor)
    components["InputTensor"]["properties"]["shape"]["items"] = {"type": "integer", "minimum": 0}
    return components


def _elements(tensor: str) -> dict[str, Any]:
    element: dict[str, Any] = {"type": ["number", "boolean", "string", "array"]}
    if tensor == "OutputTensor":
        element = {"type": ["number", "boolean", "string", "null"]}
    return {"type": "array", "items": element}


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": operation_id(route),
        "parameters": _parameters(route),
        "responses": _responses(route),
    }
    if route.open:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = _request_body(route)
    return operation


def operation_id(route: Route) -> str:
    at_version = "_at_version" if "{version}" in route.path else ""
    return f"{route.handler.__name__}{at_version}"


def _parameters(route: Route) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _NAMES.findall(route.path)
    ]
    in_query = [
        {"name": name, "in": "query", "required": False, "schema": msgspec.json.schema(kind)}
        for name, kind in route.query.items()
    ]
    headers = []
    if route.body is InferRequest:
        headers = [
            _header("x-astrarium-application", "Whose request it is, for execution times by application"),
            _header("x-astrarium-timeline", "1: the answer says how long each stage took (microseconds)"),
            _header("Inference-Header-Content-Length", "The length of the JSON, where tensors follow it"),
        ]
    return [*in_path, *in_query, *headers]


def _header(name: str, description: str) -> dict[str, Any]:
    text = {"type": "string", "pattern": "^[0-9A-Za-z]{0,16}$"}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": text}


def _request_body(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _schema(route.body)}}
    if route.body is InferRequest:
        content |= _BINARY
    return {"required": route.body is InferRequest, "content": content}


def _responses(route: Route) -> dict[str, Any]:
    statuses = {401, 404, 405, *route.statuses}
    statuses |= set(_WITH_BODY) if route.body is not None else set()
    statuses |= {400} if route.query else set()
    answers: dict[str, Any] = {"200": _success(route)}
    return answers | {str(status): _failure(status) for status in sorted(statuses)}


def _success(route: Route) -> dict[str, Any]:
    schema = _schema(route.answer) if route.answer is not None else {"type": "string"}
    content: dict[str, Any] = {route.content: {"schema": schema}}
    if route.answer is InferResponse:
        content |= _BINARY
    return {"description": route.summary, "content": content}


def _failure(status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": _REASONS[status],
        "content": {"application/json": {"schema": _schema(ErrorAnswer)}},
    }
    if status == 429:
        answer["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return answer


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema
