"""A scenario becomes a running server that answers until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from astrarium import __version__
from astrarium.core.errors import InputError
from astrarium.core.quantities import write_bytes
from astrarium.run.pools import signals_to
from astrarium.server.control.plan import plan
from astrarium.server.descriptors import check_descriptors, raise_limit
from astrarium.server.grpc.server import NativeGrpc, RunningGrpc, serve_grpc
from astrarium.server.http.server import RunningHttp, serve_http
from astrarium.server.recording import Header, Recording
from astrarium.server.service import LiveService
from astrarium.server.settings import Address, HttpLimits, Security
from astrarium.serving.live.workers import LocalWorkers
from astrarium.serving.scenario import Scenario
from astrarium.serving.scenario.schema import ServerOptions

# What Ctrl-C (SIGINT) and SIGTERM mean to a server, whatever it is doing.


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Let a signal end the block, also where it does not await.

    It is raised as KeyboardInterrupt, or as SystemExit where it was SIGTERM.
    """
    main = asyncio.current_task()
    loop = asyncio.get_running_loop()
    assert main is not None
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if asyncio.current_task() is main:
            raise _ending(number)
        loop.call_soon_threadsafe(main.cancel)

    with signals_to(end):
        try:
            yield
        except asyncio.CancelledError:
            if not told:
                raise
            raise _ending(told[0]) from None


async def told_to_stop() -> None:
    """Wait until a signal comes."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    with signals_to(lambda number, frame: loop.call_soon_threadsafe(stop.set)):
        await stop.wait()


def _ending(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


# What can be known to go wrong before a worker is started: models may take minutes to load.


_MIB = 2**20
_SMALLEST = 256  # bytes: one block of the arena
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container


def check(options: ServerOptions) -> None:
    """Check the options; InputError names the field that this machine cannot satisfy."""
    check_memory(options.memory, machine_memory())
    _check_record(options.record)
    _check_host(options.host)
    _check_port("http", options.host, options.http)
    if options.grpc is not None:
        _check_port("grpc", options.host, options.grpc)


def machine_memory() -> int:
    """Return the bytes that this process may use, by the machine and by the limit of its container."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        return min(whole, int(_CGROUP_LIMIT.read_text()))
    return whole


def check_memory(wanted: int, there: int) -> None:
    if wanted < _SMALLEST:
        raise InputError("server.memory", wanted, f"at least {_SMALLEST} bytes")
    if wanted > there:
        most = write_bytes(there // _MIB * _MIB)
        raise InputError("server.memory", write_bytes(wanted), f"at most {most}, which this machine has")


def _check_record(record: str | None) -> None:
    if record is None:
        return
    path = Path(record)
    if path.is_dir() or not path.parent.is_dir():
        found = "this is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise InputError("server.record", record, f"the name of a file in a folder that is there; {found}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError("server.record", record, "a file that can be written: permission denied")


def _check_host(host: str) -> None:
    try:
        _bound(host, 0)
    except OSError as error:
        raise InputError("server.host", host, f"an address of this machine: {_told(error)}") from None


def _check_port(field: str, host: str, port: int) -> None:
    try:
        _bound(host, port)
    except OSError as error:
        way_out = f"stop what listens there, or choose another: -o server.{field}=PORT, 0 for any free one"
        expected = f"a port of {host} that can be listened on ({_told(error)}); {way_out}"
        raise InputError(f"server.{field}", port, expected) from None


def _told(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


def _bound(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host, port), family=family).close()


DRAIN_SECONDS = 30.0
CLOSE_SECONDS = 5.0
WORKER_SECONDS = 2.0
log = logging.getLogger("astrarium.server")


@dataclass
class RunningServer:
    """A running server is everything that is up, as `started` hears of it."""

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
    http = await serve_http(service, where, limits, security, native, service.plan.uvicorn)
    if http.network is not None:
        service.listen_to(http.network)
    grpc = None
    if options.grpc is not None:
        grpc = await serve_grpc(service, Address(options.host, options.grpc), limits, security, native)
        if isinstance(grpc, NativeGrpc):
            service.listen_to(grpc)
    return RunningServer(service, http, grpc)


async def _finish(running: RunningServer) -> None:
    log.info("draining: %d calls are open", running.service.control.admission.open())
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
