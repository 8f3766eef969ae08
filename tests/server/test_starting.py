"""What is decided before anything is started: what a machine cannot give, and which path calls take."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.core.quantities import MICROSECOND, MILLISECOND, SECOND, rounded_duration
from astrarium.server.control.plan import plan
from astrarium.server.process import preflight
from astrarium.server.recording import Header, Recording
from astrarium.serving.scenario import Scenario, load
from astrarium.serving.scenario.server_options import ServerOptions
from tests.support.live_fakes import KILLED, Stage
from tests.support.server.live_server import PATIENCE

SCENARIO = "cluster: {gpus: 1}\nmodels: {m: {profile: {alpha: 1ms, beta: 1ms}, slo: 20ms}}\n"


def refused(**options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        preflight.check(ServerOptions(**{"http": 0, "grpc": 0, **options}))
    return caught.value


def test_what_any_machine_has_is_enough(tmp_path: Path) -> None:
    preflight.check(ServerOptions(http=0, grpc=None, record=str(tmp_path / "new.jsonl")))


def test_memory_that_the_machine_does_not_have() -> None:
    error = refused(memory=900 * 2**40)
    assert (error.field, error.value) == ("server.memory", "900TiB")
    assert error.expected.endswith("MiB, which this machine has")
    with pytest.raises(InputError, match=r"server.memory: expected at most 3GiB, .*\(got '4GiB'\)"):
        preflight.check_memory(4 * 2**30, 3 * 2**30 + 5)


@pytest.mark.parametrize("field", ["http", "grpc"])
def test_a_port_in_use_is_named_by_its_field(field: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = refused(**{field: port})
    assert (error.field, error.value) == (f"server.{field}", port)
    assert "Address already in use" in error.expected
    assert f"-o server.{field}=PORT" in error.expected


def test_a_host_that_is_not_this_machine() -> None:
    assert refused(host="192.0.2.1").field == "server.host"


@pytest.mark.parametrize(("name", "why"), [("no/such/run.jsonl", "no folder"), (".", "is a folder")])
def test_a_recording_makes_no_folders(tmp_path: Path, name: str, why: str) -> None:
    error = refused(record=str(tmp_path / name))
    assert error.field == "server.record"
    assert why in error.expected
    assert not list(tmp_path.iterdir())


def test_a_server_that_does_not_start_leaves_an_older_recording_alone(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text("an older one")
    Recording(file, Header("", "1")).close()
    assert file.read_text() == "an older one"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "server.memory=900TiB"], "server.memory: expected at most "),
        (["--record", "no/such/folder/run.jsonl"], "server.record: expected the name of a file in a folder"),
    ],
)
def test_the_command_says_file_and_field_in_one_line(
    tmp_path: Path, options: list[str], message: str
) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    command = [sys.executable, "-m", "astrarium", "serve", str(file), "--http", "0", "--grpc", "0", *options]
    left = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    (line,) = left.stderr.strip().splitlines()
    assert (left.returncode, line.startswith(f"error: {file}: {message}")) == (2, True), line


def test_workers_that_are_late_and_what_they_load() -> None:
    stage = Stage(gpus=2, models=3)
    stage.fleet.died(0, KILLED)
    stage.fleet._entries[0].to_load = {2, 1}
    assert stage.fleet.late() == [(0, [1, 2], stage.fleet._entries[0].started)]


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (0, "0 ms"),
        (150, "150 ns"),
        (10 * MICROSECOND, "0.01 ms"),
        (25 * MILLISECOND, "25 ms"),
        (3_431_234, "3.43 ms"),
        (999 * MILLISECOND + 900_000, "1000 ms"),
        (4320 * MILLISECOND, "4.32 s"),
        (4320 * SECOND, "4320 s"),
        (10**7 * SECOND, "10000000 s"),
    ],
)
def test_durations_are_said_without_powers_of_ten(time: int, message: str) -> None:
    assert rounded_duration(time) == message


@pytest.mark.parametrize(
    ("more", "uvicorn", "python"),
    [
        ("", "", ""),
        ("server: {path: native}", "", ""),
        ("server: {path: python}", "server_path", ""),
        ("policy: {name: orloj}", "", ""),
        ("policy: {name: clockwork}", "", "policy clockwork has no live native twin"),
        ("server: {record: r.jsonl}", "", "what is recorded is decided in Python"),
        ("server: {tls: {cert: c.pem, key: k.pem}}", "tls", ""),
    ],
)
def test_calls_go_as_natively_as_they_can(tmp_path: Path, more: str, uvicorn: str, python: str) -> None:
    scenario = written(tmp_path, more)
    live_plan = plan(scenario)
    assert (live_plan.uvicorn, live_plan.python_policy) == (uvicorn, python)
    assert ("uvicorn" in live_plan.told_path) is bool(uvicorn)
    assert live_plan.told_path.endswith(
        f"scheduled by a policy in Python ({python})" if python else "scheduled natively"
    )


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("policy: {name: clockwork}\nserver: {path: native}", "policy clockwork has no live native twin"),
        ("server: {path: native, tls: {cert: c.pem, key: k.pem}}", "uvicorn reads the calls: TLS"),
    ],
)
def test_what_must_be_native_and_cannot_be_is_refused(tmp_path: Path, more: str, why: str) -> None:
    with pytest.raises(InputError, match=rf"server\.path: expected auto or python, since {why}"):
        plan(written(tmp_path, more))


def written(folder: Path, more: str) -> Scenario:
    (folder / "c.pem").touch()
    (folder / "k.pem").touch()
    file = folder / "scenario.yaml"
    file.write_text(f"cluster: {{gpus: 1}}\nmodels:\n  m: {{profile: {{table: [5ms]}}, slo: 25ms}}\n{more}\n")
    return load(file, serving=True)


def test_without_the_native_extension_serving_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = written(tmp_path, "")
    monkeypatch.setattr("astrarium.server.control.plan.extension", lambda name: None)
    with pytest.raises(InputError, match=r"expected the native extension.*install astrarium from a wheel"):
        plan(scenario)
