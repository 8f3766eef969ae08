"""The OpenAPI description of the HTTP protocol is made from the routes and the structures they speak."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from astrarium import __version__
from astrarium.server.http.routing import Route
from astrarium.server.protocol.wire import ErrorAnswer, InferRequest, InferResponse

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
