"""A scenario becomes a running server that answers until it is told to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from astrarium import __version__
from astrarium.core.errors import InputError
from astrarium.server.control.plan import plan
from astrarium.server.grpc.network import NativeGrpc
from astrarium.server.grpc.server import RunningGrpc, serve_grpc
from astrarium.server.http.server import RunningHttp, serve_http
from astrarium.server.process.descriptors import check_descriptors, raise_limit
from astrarium.server.process.preflight import check
from astrarium.server.process.signals import ends_at_once, told_to_stop
from astrarium.server.recording import Header, Recording
from astrarium.server.service import LiveService
from astrarium.server.settings import Address, HttpLimits, Security
from astrarium.serving.live.workers import LocalWorkers
from astrarium.serving.scenario import Scenario
from astrarium.serving.scenario.server_options import ServerOptions

DRAIN_SECONDS = 30.0
CLOSE_SECONDS = 5.0
WORKER_SECONDS = 2.0
log = logging.getLogger("astrarium.server")


@dataclass
class RunningServer:
    """All of this is up when `started` is called with it, and ends before `serve` returns."""

    service: LiveService
    http: RunningHttp
    grpc: RunningGrpc | NativeGrpc | None


async def serve(scenario: Scenario, started: Callable[[RunningServer], None]) -> None:
    """Serve until SIGTERM or SIGINT; then take no new calls, answer those that were accepted, and end.

    A signal while it starts, and a second one while it drains, end it at once.
    """
    raise_limit()
    check(scenario.server)
    recording = _recording(scenario)
    workers = partial(LocalWorkers, reserve=scenario.server.reserve)
    planned = plan(scenario)
    check_descriptors(len(planned.workers), planned.threads, planned.queue)
    service = LiveService(planned, workers, recording)
    grace = 0.0  # for workers that may still be loading, and hear nothing meanwhile
    try:
        with ends_at_once():
            await service.start()
            running = await _listen(service, scenario.server)
            service.garbage.settle()
            started(running)
        await told_to_stop()
        with ends_at_once():
            await _finish(running)
        grace = WORKER_SECONDS
    finally:
        await service.stop(grace)
        if recording is not None:
            recording.close()


def _recording(scenario: Scenario) -> Recording | None:
    place = scenario.server.record
    return Recording(Path(place), Header(scenario.to_yaml(), __version__)) if place else None


class NativeWay:
    """The native way into a service is for calls that network threads have read."""

    def __init__(self, service: LiveService) -> None:
        self.exchange = service.exchange
        self.threads = service.plan.threads
        self.cards = service.calls.cards


async def _listen(service: LiveService, options: ServerOptions) -> RunningServer:
    limits = HttpLimits(body_bytes=options.payload)
    security = _security(options)
    where = Address(options.host, options.http)
    native = None if service.plan.uvicorn else NativeWay(service)
    regions = service.exchange.regions
    http = await serve_http(service, where, limits, security, native, service.plan.uvicorn, regions)
    if http.network is not None:
        service.listen_to(http.network)
    grpc = None
    if options.grpc is not None:
        grpc = await serve_grpc(
            service, Address(options.host, options.grpc), limits, security, native, regions
        )
        if isinstance(grpc, NativeGrpc):
            service.listen_to(grpc)
    return RunningServer(service, http, grpc)


async def _finish(running: RunningServer) -> None:
    log.info("draining: %d calls are open", running.service.coordinator.admission.open())
    await running.service.drain(DRAIN_SECONDS)
    await running.http.stop(CLOSE_SECONDS)
    if running.grpc is not None:
        await running.grpc.stop(CLOSE_SECONDS)
    log.info("stopped")


def _security(options: ServerOptions) -> Security:
    keys = read_keys(Path(options.api_keys)) if options.api_keys else ()
    if options.tls is None:
        return Security(keys)
    return Security(keys, Path(options.tls.cert), Path(options.tls.key))


def read_keys(file: Path) -> tuple[str, ...]:
    """Return the keys of a file: one on each line, but for blank lines and those that begin with #."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("server.api_keys", str(file), f"a file of text that can be read: {error}") from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        expected = "a file with one key on each line; blank lines and lines that begin with # are none"
        raise InputError("server.api_keys", str(file), f"{expected}, and it has no other")
    return keys
