"""Some descriptors are kept for the server itself; clients for whom there is none are turned away at once."""

from __future__ import annotations

import contextlib
import resource
import socket
from pathlib import Path

import pytest

from astrarium.core.errors import InputError
from astrarium.server.client_errors import ClientErrors
from astrarium.server.process import descriptors
from astrarium.server.process.descriptors import check_descriptors, most_descriptors, raise_limit
from tests.support.server import live_server

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def test_clients_leave_descriptors_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in [(64, 56), (1024, 992), (20_000, 19_968), (resource.RLIM_INFINITY, (1 << 20) - 32)]:
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert most_descriptors() == most


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    for soft, hard in [(1024, 4096), (4096, 4096), (1024, resource.RLIM_INFINITY), (-1, -1)]:
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=(soft, hard): limits)
        raise_limit()
    assert raised == [(4096, 4096), (1 << 20, resource.RLIM_INFINITY)]


def test_too_few_descriptors_are_told_of_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "limit_of_descriptors", lambda: 64)
    with pytest.raises(InputError, match=r"ulimit -n: expected at least \d+ for 8 workers and 4 network"):
        check_descriptors(workers=8, threads=4, calls=100)
    check_descriptors(workers=2, threads=1, calls=10)
    assert not caplog.records
    check_descriptors(workers=2, threads=1, calls=100)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "ulimit -n is 64: about 20 clients can be connected, and server.queue lets 100 calls" in line


def test_connections_without_a_descriptor_are_counted_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = ClientErrors()
    for _ in range(100):
        errors.no_descriptor(2)
        errors.no_descriptor(0)
    assert errors.turned_away == 200
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("2 connections were turned away since the start: ulimit -n is ")


SCENARIO = """
cluster: {gpus: 1}
models:
  echo: {profile: {alpha: 1ms, beta: 1ms}, slo: 1s}
policy: {name: eager}
"""


@pytest.mark.parametrize("path", ["auto", "python"])
def test_no_client_waits_for_ever_where_descriptors_are_short(tmp_path: Path, path: str) -> None:
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    with live_server.serving(tmp_path / "scenario.yaml", "-o", f"server.path={path}") as server:
        pid = server.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        limit = max(64, used + 24)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
        host, port = server.http.split(":")
        connections = [socket.create_connection((host, int(port)), timeout=60) for _ in range(limit)]
        statuses = [_status(connection) for connection in connections]
        for connection in connections:
            connection.close()
        assert statuses.count("200") >= 5
        assert statuses.count("503") >= 5
        assert statuses.count("200") + statuses.count("503") == limit
        live_server.eventually(lambda: _turned_away(server) >= statuses.count("503"), "they are counted")


def _turned_away(server: live_server.Server) -> float:
    try:
        return server.metric("astrarium_connections_turned_away_total")
    except OSError:
        return 0  # the clients' connections are not gone yet


def _status(connection: socket.socket) -> str:
    with contextlib.suppress(OSError):  # it was closed; what it was told may still be read
        connection.sendall(LIVE)
    return connection.recv(4096)[9:12].decode()
