"""What can be known to go wrong before a worker is started: models may take minutes to load."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from astrarium.core.errors import InputError
from astrarium.core.quantities import write_bytes
from astrarium.serving.scenario.server_options import ServerOptions

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
        obstacle = "this is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise InputError("server.record", record, f"the name of a file in a folder that is there; {obstacle}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError("server.record", record, "a file that can be written: permission denied")


def _check_host(host: str) -> None:
    try:
        _bound(host, 0)
    except OSError as error:
        raise InputError("server.host", host, f"an address of this machine: {_error_text(error)}") from None


def _check_port(field: str, host: str, port: int) -> None:
    try:
        _bound(host, port)
    except OSError as error:
        way_out = f"stop what listens there, or choose another: -o server.{field}=PORT, 0 for any free one"
        expected = f"a port of {host} that can be listened on ({_error_text(error)}); {way_out}"
        raise InputError(f"server.{field}", port, expected) from None


def _error_text(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


def _bound(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host, port), family=family).close()
