"""From a scenario to a server that answers, until it is told to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astrarium import __version__
from astrarium.core.errors import InputError
from astrarium.engines.local import LocalWorkers
from astrarium.scenario import Scenario
from astrarium.scenario.serving_schema import ServerOptions
from astrarium.server import starting
from astrarium.server.control.plan import plan
from astrarium.server.grpc.server import RunningGrpc, serve_grpc
from astrarium.server.http.server import RunningHttp, serve_http
from astrarium.server.recording import Header, Recording
from astrarium.server.service import LiveService
from astrarium.server.settings import Address, HttpLimits, Security
from astrarium.server.signals import ends_at_once, told_to_stop

DRAIN_SECONDS = 30.0
CLOSE_SECONDS = 5.0
WORKER_SECONDS = 2.0
log = logging.getLogger("astrarium.server")


@dataclass
class Running:
    """What `started` hears of: everything that is up."""

    service: LiveService
    http: RunningHttp
    grpc: RunningGrpc | None


async def serve(scenario: Scenario, started: Callable[[Running], None]) -> None:
    """Until SIGTERM or SIGINT; then no new calls, answers to those that were accepted, and the end. A signal
    while it starts, and a second one while it drains, end it at once."""
    starting.check(scenario.server)
    recording = _recording(scenario)
    service = LiveService(plan(scenario), LocalWorkers, recording.section if recording else None)
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


async def _listen(service: LiveService, options: ServerOptions) -> Running:
    limits, security = HttpLimits(body_bytes=options.payload), _security(options)
    where = Address(options.host, options.http)
    http = await serve_http(service, where, limits, security, service.calls)
    grpc = None
    if options.grpc is not None:
        grpc = await serve_grpc(service, Address(options.host, options.grpc), limits, security)
    return Running(service, http, grpc)


async def _finish(running: Running) -> None:
    log.info("draining: %d calls are open", running.service.desk.open)
    await running.service.drain(DRAIN_SECONDS)
    await running.http.stop(CLOSE_SECONDS)
    if running.grpc is not None:
        await running.grpc.stop(CLOSE_SECONDS)
    log.info("stopped")


def _security(options: ServerOptions) -> Security:
    keys = _keys(Path(options.api_keys)) if options.api_keys else ()
    if options.tls is None:
        return Security(keys)
    return Security(keys, Path(options.tls.cert), Path(options.tls.key))


def _keys(file: Path) -> tuple[str, ...]:
    keys = tuple(line.strip() for line in file.read_text().splitlines() if line.strip())
    if not keys:
        raise InputError("server.api_keys", str(file), "a file with one key on each line; it is empty")
    return keys
