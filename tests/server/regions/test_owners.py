"""Whose regions a client reaches: its own, by user and by key."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest
import tritonclient.grpc as over_grpc
from tritonclient.utils import InferenceServerException

from tests.support.server.fakes import served
from tests.support.server.live_server import PATIENCE, Server, serving
from tests.support.server.shared_objects import SharedObject, floats, shared_object

SCENARIO = """
cluster: {gpus: 1}
models:
  echo: {profile: {alpha: 0.1ms, beta: 1ms}, slo: 20s}
policy: {name: eager}
server: {shared_memory: 1MiB, api_keys: KEYS, path: PATH}
"""
KEYS = ("one-key", "another-key")
SOMEBODY = 65_533
NOBODY = 65_534  # also everybody whom a namespace of users does not know
PLACE = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
TENSOR = {"name": "INPUT", "datatype": "FP32", "shape": [1, 2], "parameters": PLACE}
CURL = shutil.which("curl")
needs_users = pytest.mark.skipif(
    os.geteuid() != 0 or CURL is None, reason="only root can be somebody else, by curl"
)


@pytest.fixture(scope="module", params=["auto", "python"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("owners")
    (folder / "keys.txt").write_text("\n".join(KEYS))
    text = SCENARIO.replace("KEYS", str(folder / "keys.txt")).replace("PATH", request.param)
    (folder / "scenario.yaml").write_text(text)
    with serving(folder / "scenario.yaml") as running:
        yield running


@pytest.fixture
def memory() -> Iterator[SharedObject]:
    with shared_object(floats(1, 2)) as made:
        yield made


def ask(server: Server, path: str, content: object, key: str = KEYS[0], user: int | None = None) -> str:
    command = [str(CURL), "-s", f"http://{server.http}/v2/{path}", "-H", f"x-api-key: {key}"]
    if content is not None:
        command += ["-d", json.dumps(content)]
    done = subprocess.run(command, user=user, capture_output=True, text=True, timeout=PATIENCE, cwd="/")
    return done.stdout


def register(server: Server, memory: SharedObject, key: str = KEYS[0], user: int | None = None) -> str:
    form = {"key": memory.key, "byte_size": 8}
    return ask(server, "systemsharedmemory/region/r/register", form, key, user)


def infer(server: Server, key: str = KEYS[0], user: int | None = None) -> str:
    return ask(server, "models/echo/infer", {"inputs": [TENSOR]}, key, user)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        running: Server = request.getfixturevalue("server")
        for key in KEYS:
            for user in (None, SOMEBODY) if os.geteuid() == 0 else (None,):
                assert ask(running, "systemsharedmemory/unregister", {}, key, user) == "{}"


@pytest.mark.skipif(CURL is None, reason="there is no curl")
def test_a_key_reaches_what_it_registered(server: Server, memory: SharedObject) -> None:
    assert register(server, memory) == "{}"
    assert '"data":[1.0,2.0]' in infer(server)
    assert "a region that this client has registered" in infer(server, KEYS[1])
    assert ask(server, "systemsharedmemory/status", None, KEYS[1]) == "[]"
    assert ask(server, "systemsharedmemory/unregister", {}, KEYS[1]) == "{}"
    assert '"data":[1.0,2.0]' in infer(server)
    assert "API key" in infer(server, "no-key")


@needs_users
def test_a_user_reaches_its_own_memory_and_regions(server: Server, memory: SharedObject) -> None:
    assert "belongs to the client's own user" in register(server, memory, user=SOMEBODY)
    assert register(server, memory) == "{}"
    assert "a region that this client has registered" in infer(server, user=SOMEBODY)
    with shared_object(floats(3, 4)) as theirs:
        os.chown(theirs.path, SOMEBODY, SOMEBODY)
        assert register(server, theirs, user=SOMEBODY) == "{}"
        assert '"data":[3.0,4.0]' in infer(server, user=SOMEBODY)
        assert "own user" in register(server, theirs, KEYS[1])  # not even root's client
    assert '"data":[1.0,2.0]' in infer(server)


@needs_users
def test_a_user_that_nobody_knows_has_no_memory(server: Server) -> None:
    with shared_object(floats(1, 2), 0o666) as memory:
        assert "so that its user is known" in register(server, memory, user=NOBODY)


def test_over_grpc_the_same_holds(server: Server, memory: SharedObject) -> None:
    headers = [{"x-api-key": key} for key in KEYS]
    with over_grpc.InferenceServerClient(server.grpc) as client:
        if "uvicorn" in server.said:
            with pytest.raises(InferenceServerException, match="so that its user is known"):
                client.register_system_shared_memory("r", memory.key, 8, headers=headers[0])
            return
        client.register_system_shared_memory("r", memory.key, 8, headers=headers[0])
        tensor = over_grpc.InferInput("INPUT", [1, 2], "FP32")
        tensor.set_shared_memory("r", 8)
        assert client.infer("echo", [tensor], headers=headers[0]).as_numpy("OUTPUT").tolist() == [[1, 2]]
        with pytest.raises(InferenceServerException, match="a region that this client has registered"):
            client.infer("echo", [tensor], headers=headers[1])
        assert not client.get_system_shared_memory_status(headers=headers[1]).regions


def test_without_the_option_there_are_none() -> None:
    form = {"key": "/x", "byte_size": 8}
    with served() as running:
        assert said(running.ask("POST", "/v2/systemsharedmemory/region/r/register", json.dumps(form))) == (
            400,
            "shared memory: expected tensors in messages: this server takes no shared memory "
            "(server.shared_memory)",
        )
        tensor = {**TENSOR, "name": "IN"}
        status, reason = said(running.ask("POST", "/v2/models/echo/infer", json.dumps({"inputs": [tensor]})))
        assert (status, "tensors inside the request: there are no regions" in reason) == (400, True)
        assert running.ask("GET", "/v2/systemsharedmemory/status")[1] == b"[]"
        assert running.ask("POST", "/v2/systemsharedmemory/unregister")[0].status == 200
        extensions = json.loads(running.ask("GET", "/v2")[1])["extensions"]
        assert "system_shared_memory" not in extensions


def said(answer: tuple[HTTPResponse, bytes]) -> tuple[int, str]:
    response, content = answer
    return response.status, json.loads(content)["error"]
