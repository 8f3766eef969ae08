"""Every operation over HTTP, in the order in which the description lists them."""

from __future__ import annotations

from typing import Any

from astrarium.server.http.handlers import Handlers
from astrarium.server.http.openapi import described
from astrarium.server.http.region_handlers import RegionHandlers, region_routes
from astrarium.server.http.routing import Route
from astrarium.server.protocol import wire

_ONE = "/v2/models/{model}"
_AT_VERSION = "/v2/models/{model}/versions/{version}"
_CHANGE = "/v2/repository/models/{model}"
_CHANGE_FAILS: dict[str, Any] = {"answer": dict, "body": wire.ChangeRequest, "statuses": (429, 500, 503, 504)}
_INFER: dict[str, Any] = {
    "answer": wire.InferResponse,
    "body": wire.InferRequest,
    "statuses": (422, 429, 500, 503, 504),
}


def routes_of(handlers: Handlers) -> list[Route]:
    routes = [
        *_about_the_server(handlers),
        Route("GET", "/v2/models/stats", handlers.all_statistics, "All statistics", wire.StatisticsAnswer),
        *_about_a_model(handlers, _ONE),
        *_about_a_model(handlers, _AT_VERSION),
        *_repository(handlers),
        *region_routes(RegionHandlers(handlers.bodies)),
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
        Route("GET", f"{_CHANGE}/quarantine", h.quarantine, "Inputs that broke a worker", wire.Quarantine),
        Route("DELETE", f"{_CHANGE}/quarantine", h.release, "Let these inputs out", wire.Released),
    ]


def _watching(h: Handlers) -> list[Route]:
    last: dict[str, Any] = {"answer": dict, "query": {"last": wire.Last}}
    return [
        Route("GET", "/metrics", h.metrics, "Prometheus metrics", content="text/plain"),
        Route("GET", "/timeline", h.timeline, "The last requests and batches, for Perfetto", **last),
        Route("GET", "/openapi.json", h.openapi, "This description", dict),
    ]
