"""Tensors of calls in memory that client and server share, with a real server and real clients."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
import tritonclient.utils.shared_memory as triton_memory
from tritonclient.utils import InferenceServerException

from tests.support.server.live_server import PATIENCE, Server, eventually, serving
from tests.support.server.shared_objects import SharedObject, floats, shared_object

SCENARIO = """
cluster: {gpus: 1}
models:
  echo: {profile: {alpha: 0.1ms, beta: 1ms}, slo: 20s}
  slow: {profile: {table: {1: 700ms}}, slo: 60s}
  fixed:
    profile: {alpha: 0.1ms, beta: 1ms}
    slo: 20s
    backend: {python: models.py:twice}
    inputs: [{name: X, datatype: FP32, shape: [2], values: [0, 9]}]
    outputs: [{name: Y, datatype: FP32, shape: [2]}]
  pair:
    profile: {alpha: 0.1ms, beta: 1ms}
    slo: 20s
    backend: {python: models.py:swapped}
    inputs: [{name: A, datatype: FP32, shape: [2]}, {name: B, datatype: FP32, shape: [2]}]
    outputs: [{name: C, datatype: FP32, shape: [2]}, {name: D, datatype: FP32, shape: [2]}]
  texts:
    profile: {alpha: 0.1ms, beta: 1ms}
    slo: 20s
    backend: {python: models.py:same}
    inputs: [{name: T, datatype: BYTES, shape: [1]}]
    outputs: [{name: U, datatype: BYTES, shape: [1]}]
policy: {name: eager}
"""
MODELS = """
def twice(X):
    return {"Y": 2 * X}

def swapped(A, B):
    return {"C": B, "D": A}

def same(T):
    return {"U": T}
"""
OPTIONS = "server: {shared_memory: 1MiB, payload: 512KiB, memory: 64MiB%s}\n"
# Who reads calls. grpc.aio does not tell whose a connection is, so that users cannot be told apart there.
WAYS = {"native": "", "python": ", path: python, shared_memory_clients: any"}
PROTOCOLS: dict[str, Any] = {"http": over_http, "grpc": over_grpc}


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("regions")
    (folder / "models.py").write_text(MODELS)
    (folder / "scenario.yaml").write_text(SCENARIO + OPTIONS % WAYS[request.param])
    with serving(folder / "scenario.yaml") as running:
        running.said += f"\nway: {request.param}"
        yield running


# of what is refused, over HTTP and gRPC
BAD = ("400", "StatusCode.INVALID_ARGUMENT")
TOO_MUCH = ("429", "StatusCode.RESOURCE_EXHAUSTED")


class Client(NamedTuple):
    module: Any
    calls: Any
    server: Server

    def input(self, name: str, shape: list[int], region: str, size: int, offset: int = 0) -> Any:
        tensor = self.module.InferInput(name, shape, "FP32")
        tensor.set_shared_memory(region, size, offset)
        return tensor

    def output(self, name: str, region: str, size: int, offset: int = 0) -> Any:
        wanted = self.module.InferRequestedOutput(name)
        wanted.set_shared_memory(region, size, offset)
        return wanted

    def refused(self, ask: Callable[[], object], reason: str, status: tuple[str, ...] = BAD) -> None:
        with pytest.raises(InferenceServerException, match=reason) as caught:
            ask()
        assert caught.value.status() in status


@pytest.fixture(params=PROTOCOLS)
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    module = PROTOCOLS[request.param]
    with module.InferenceServerClient(getattr(server, request.param)) as calls:
        yield Client(module, calls, server)
        calls.unregister_system_shared_memory()


@pytest.fixture
def memory(client: Client) -> Iterator[SharedObject]:
    """Four numbers, and place for four, registered as `r`."""
    with shared_object(floats(1, 2, 3, 4, 0, 0, 0, 0)) as made:
        client.calls.register_system_shared_memory("r", made.key, 32)
        yield made


def test_tritons_client_works_as_it_is(client: Client) -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    key = f"test-triton-{os.getpid()}"
    handles = [
        triton_memory.create_shared_memory_region(name, f"/{key}-{name}", 24) for name in ("in", "out")
    ]
    try:
        triton_memory.set_shared_memory_region(handles[0], [numbers])
        for name in ("in", "out"):
            client.calls.register_system_shared_memory(name, f"/{key}-{name}", 24)
        inputs = [client.input("INPUT", [2, 3], "in", 24)]
        answer = client.calls.infer("echo", inputs, outputs=[client.output("OUTPUT", "out", 24)])
        assert (
            triton_memory.get_contents_as_numpy(handles[1], np.float32, [2, 3]).tolist() == numbers.tolist()
        )
        told = str(answer.get_output("OUTPUT"))
        assert "FP32" in told
        assert "parameters" not in told  # Triton's C++ client takes an output that has some for a binary one
    finally:
        for handle in handles:
            triton_memory.destroy_shared_memory_region(handle)


def test_what_is_registered_can_be_seen_until_it_is_not(client: Client, memory: SharedObject) -> None:
    client.calls.register_system_shared_memory("half", memory.key, 16, offset=16)
    expected = {"half": (memory.key, 16, 16), "r": (memory.key, 0, 32)}
    assert entries(client) == expected
    assert entries(client, "half") == {"half": expected["half"]}
    assert client.server.metric("astrarium_regions") == 2
    assert client.server.metric("astrarium_region_bytes") == 48
    client.calls.unregister_system_shared_memory("half")
    client.calls.unregister_system_shared_memory("half")  # once more is as well
    assert entries(client) == {"r": expected["r"]}
    client.calls.unregister_system_shared_memory()
    assert entries(client) == {}
    client.refused(lambda: entries(client, "r"), "region: expected .*got 'r'")


def test_the_extension_is_named(client: Client) -> None:
    metadata = client.calls.get_server_metadata()
    extensions = metadata["extensions"] if isinstance(metadata, dict) else metadata.extensions
    assert "system_shared_memory" in extensions
    assert "cuda_shared_memory" not in extensions


def test_calls_go_the_way_that_others_go(client: Client, memory: SharedObject) -> None:
    if "way: native" not in client.server.said:
        pytest.skip("there is but one way")
    before = [client.server.metric(f"astrarium_{name}_total") for name in ("express_calls", "long_way")]
    ask(client)
    after = [client.server.metric(f"astrarium_{name}_total") for name in ("express_calls", "long_way")]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 0]


def test_parts_of_one_object_are_inputs_and_outputs(client: Client, memory: SharedObject) -> None:
    inputs = [client.input("A", [1, 2], "r", 8, 8), client.input("B", [1, 2], "r", 8)]
    outputs = [client.output("D", "r", 8, 24), client.output("C", "r", 8, 16)]
    client.calls.infer("pair", inputs, outputs=outputs)
    assert memory.floats() == [1, 2, 3, 4, 1, 2, 3, 4]


def test_parts_may_overlap(client: Client, memory: SharedObject) -> None:
    inputs = [client.input("A", [1, 2], "r", 8), client.input("B", [1, 2], "r", 8, 4)]
    outputs = [client.output("C", "r", 8), client.output("D", "r", 8, 4)]
    client.calls.infer("pair", inputs, outputs=outputs)
    assert memory.floats()[3:] == [4, 0, 0, 0, 0]
    assert memory.floats()[:3] == [2, 1, 2]  # the second one was written last


def test_some_tensors_may_be_in_the_message(client: Client, memory: SharedObject) -> None:
    sent = client.module.InferInput("A", [1, 2], "FP32")
    sent.set_data_from_numpy(np.array([[8, 9]], np.float32))
    inputs = [client.input("B", [1, 2], "r", 8), sent]
    outputs = [client.output("D", "r", 16, 16), client.module.InferRequestedOutput("C")]
    answer = client.calls.infer("pair", inputs, outputs=outputs)
    assert answer.as_numpy("C").tolist() == [[1, 2]]
    assert memory.floats(16) == [8, 9, 0, 0]


def test_texts(client: Client) -> None:
    content = b"\x05\0\0\0hello"
    with shared_object(content + bytes(20)) as memory:
        client.calls.register_system_shared_memory("texts", memory.key, 29)
        tensor = client.module.InferInput("T", [1, 1], "BYTES")
        tensor.set_shared_memory("texts", 9)
        client.calls.infer("texts", [tensor], outputs=[client.output("U", "texts", 20, 9)])
        assert memory.path.read_bytes()[9:18] == content
        outputs = [client.output("U", "texts", 8, 9)]
        client.refused(
            lambda: client.calls.infer("texts", [tensor], outputs=outputs), "output U: .*at least 9 bytes"
        )
        tensor.set_shared_memory("texts", 12)
        client.refused(lambda: client.calls.infer("texts", [tensor]), r"inputs\[0\].data: expected")


def ask(
    client: Client, model: str = "echo", size: int = 16, offset: int = 0, out: tuple[int, int] = (16, 16)
) -> Any:
    inputs = [client.input("INPUT", [1, 4], "r", size, offset)]
    return client.calls.infer(model, inputs, outputs=[client.output("OUTPUT", "r", *out)])


def entries(client: Client, name: str = "") -> dict[str, tuple[str, int, int]]:
    status = client.calls.get_system_shared_memory_status(name)
    found = json.loads(json.dumps(status)) if isinstance(status, list) else status.regions.values()
    fields = [dict(one) if isinstance(one, dict) else _fields(one) for one in found]
    return {one["name"]: (one["key"], one["offset"], one["byte_size"]) for one in fields}


def _fields(entry: Any) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in ("name", "key", "offset", "byte_size")}


REFUSED_PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "too large": ({"size": 20}, "byte_size: expected 16 for FP32"),
    "too small": ({"size": 12}, "byte_size: expected 16 for FP32"),
    "beyond the end": ({"offset": 20}, "byte_size: expected at most 12, where region 'r' of 32 bytes ends"),
    "far beyond": ({"offset": 2**63 - 1}, "byte_size: expected at most 0"),
    "negative": ({"offset": -16}, "offset: expected a whole number of bytes, at least 0"),
    "a negative size": ({"size": -16}, "byte_size: expected a whole number of bytes, at least 1"),
    "an output beyond": ({"out": (16, 17)}, "outputs.0..*byte_size: expected at most 15"),
    "a negative output": ({"out": (16, -16)}, "outputs.0..*offset: expected a whole number of bytes"),
}


@pytest.mark.parametrize("what", REFUSED_PARTS)
def test_nothing_beyond_a_region_is_used(client: Client, memory: SharedObject, what: str) -> None:
    arguments, reason = REFUSED_PARTS[what]
    client.refused(lambda: ask(client, **arguments), reason)
    assert memory.floats() == [1, 2, 3, 4, 0, 0, 0, 0]


def test_an_output_of_a_known_size_must_fit_before_anything_runs(
    client: Client, memory: SharedObject
) -> None:
    inputs = [client.input("X", [1, 2], "r", 8)]
    outputs = [client.output("Y", "r", 7, 16)]
    client.refused(
        lambda: client.calls.infer("fixed", inputs, outputs=outputs), "byte_size: expected at least 8"
    )


def test_numbers_are_checked_as_elsewhere(client: Client) -> None:
    with shared_object(floats(1, 10)) as memory:
        client.calls.register_system_shared_memory("r", memory.key, 8)
        inputs = [client.input("X", [1, 2], "r", 8)]
        reason = r"input X\[0, 1\]: expected values from 0.* to 9.*got 10"
        client.refused(lambda: client.calls.infer("fixed", inputs), reason)


def test_a_region_that_nobody_registered(client: Client, memory: SharedObject) -> None:
    inputs = [client.input("INPUT", [1, 4], "s", 16)]
    client.refused(lambda: client.calls.infer("echo", inputs), "region: expected one of r.*got 's'")
    client.calls.unregister_system_shared_memory("r")
    client.refused(lambda: ask(client), "region: expected a region that this client has registered")


def test_inputs_are_together_no_larger_than_a_payload(client: Client) -> None:
    size = 300 << 10
    with shared_object(bytes(size)) as memory:
        client.calls.register_system_shared_memory("r", memory.key, size)
        large = [client.input("INPUT", [1, 160 << 10], "r", size)]
        client.refused(lambda: client.calls.infer("echo", large), "shape", ("413", *TOO_MUCH))


REGISTRATIONS = {
    "a key that is none": (
        ("x", "/../etc/passwd", 8),
        "key: expected the name of a POSIX shared memory object",
    ),
    "a key of nobody": (("x", "/nobody-has-this", 8), "key: expected shared memory that the server may open"),
    "our own": (("x", "/astrarium-gate-0-a", 8), "key: expected memory of a client"),
    "no bytes": (("x", "r", 0), "byte_size: expected at least 1"),
    "more bytes than there are": (("x", "r", 33), "byte_size: expected with the offset at most 32"),
    "an offset beyond": (("x", "r", 8, 25), "byte_size: expected with the offset at most 32"),
    "a name that is taken": (("r", "r", 8), "name: expected one that is not registered"),
    "a long name": ((300 * "x", "r", 8), "name: expected from 1 to 256 bytes"),
}


@pytest.mark.parametrize("what", REGISTRATIONS)
def test_a_registration_that_cannot_be(client: Client, memory: SharedObject, what: str) -> None:
    (name, key, *place), reason = REGISTRATIONS[what]
    key = memory.key if key == "r" else key
    client.refused(lambda: client.calls.register_system_shared_memory(name, key, *place), reason)
    assert list(entries(client)) == ["r"]


def test_a_flood_of_registrations(client: Client, memory: SharedObject) -> None:
    def register(number: int) -> object:
        try:
            client.calls.register_system_shared_memory(f"n{number}", memory.key, 1)
        except InferenceServerException as error:
            return error.status()
        return None

    answers = [register(number) for number in range(1100)]
    assert answers.count(None) == 1023  # and one is there already
    assert set(answers[1023:]) <= {"429", *TOO_MUCH}
    ask(client)
    client.calls.unregister_system_shared_memory()
    assert client.server.metric("astrarium_regions") == 0


def test_bytes_are_counted(client: Client) -> None:
    with shared_object(bytes(700 << 10)) as memory:
        client.calls.register_system_shared_memory("a", memory.key, 700 << 10)
        reason = "at most 1048576 bytes in all regions"
        client.refused(
            lambda: client.calls.register_system_shared_memory("b", memory.key, 700 << 10), reason, TOO_MUCH
        )


def test_an_input_that_became_shorter_costs_its_own_call(client: Client, memory: SharedObject) -> None:
    memory.shorten(8)
    client.refused(lambda: ask(client), "region: expected memory as large as it was registered")
    assert client.calls.is_server_live()
    assert memory.path.stat().st_size == 8


def test_an_output_that_became_shorter_costs_its_own_call(client: Client, memory: SharedObject) -> None:
    memory.shorten(20)
    client.refused(
        lambda: ask(client), "output OUTPUT: .*region: expected memory as large as it was registered"
    )
    assert memory.path.stat().st_size == 20
    eventually(lambda: client.server.metric("astrarium_open") == 0, "its call has ended")


def test_memory_that_is_unregistered_and_gone_meanwhile_is_written_all_the_same(
    client: Client, memory: SharedObject
) -> None:
    with (
        ThreadPoolExecutor(1) as threads,
        client.module.InferenceServerClient(
            client.server.http if client.module is over_http else client.server.grpc
        ) as other,
    ):
        descriptor = os.open(memory.path, os.O_RDONLY)
        calling = threads.submit(ask, Client(client.module, other, client.server), "slow")
        eventually(lambda: client.server.metric("astrarium_open", model="slow") == 1, "it is open")
        client.calls.unregister_system_shared_memory("r")
        memory.path.unlink()
        calling.result(PATIENCE)
        assert np.frombuffer(os.pread(descriptor, 16, 16), np.float32).tolist() == [1, 2, 3, 4]
        os.close(descriptor)


def test_there_are_no_regions_in_memory_of_gpus(client: Client) -> None:
    client.calls.unregister_cuda_shared_memory()
    client.refused(
        lambda: client.calls.register_cuda_shared_memory("g", b"aGFuZGxl", 0, 8), "opens no memory of GPUs"
    )
    status = client.calls.get_cuda_shared_memory_status()
    assert not (status if isinstance(status, list) else status.regions)


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "no size": ({"shared_memory_region": "r"}, "byte_size: expected a whole number"),
    "no region": ({"shared_memory_byte_size": 16}, "region: expected the name of a region"),
    "a number for a name": (
        {"shared_memory_region": 7, "shared_memory_byte_size": 16},
        "region: expected the name",
    ),
    "a text for a size": (
        {"shared_memory_region": "r", "shared_memory_byte_size": "16"},
        "byte_size: expected a whole",
    ),
    "a flag for a size": (
        {"shared_memory_region": "r", "shared_memory_byte_size": True},
        "byte_size: expected a whole",
    ),
    "half an offset": (
        {"shared_memory_region": "r", "shared_memory_byte_size": 16, "shared_memory_offset": 0.5},
        "offset: expected a whole",
    ),
    "another word": (
        {"shared_memory_region": "r", "shared_memory_byte_size": 16, "shared_memory_size": 16},
        "parameters: expected one of .*did you mean",
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_parameters_are_explained(server: Server, what: str) -> None:
    parameters, reason = ODD[what]
    with shared_object(bytes(32)) as memory:
        body = json.dumps({"key": memory.key, "offset": 0, "byte_size": 32}).encode()
        server.post("/v2/systemsharedmemory/region/r/register", body)
        tensor = {"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "parameters": parameters}
        status, said = posted(server, "/v2/models/echo/infer", {"inputs": [tensor]})
        server.post("/v2/systemsharedmemory/unregister", b"")
    assert status == 400
    assert re.search(reason, said), said


def test_data_in_both_places_are_refused(server: Server) -> None:
    with shared_object(floats(1, 2, 3, 4)) as memory:
        body = json.dumps({"key": memory.key, "byte_size": 16}).encode()
        server.post("/v2/systemsharedmemory/region/r/register", body)
        parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
        tensor = {
            "name": "INPUT",
            "datatype": "FP32",
            "shape": [1, 4],
            "parameters": parameters,
            "data": [1, 2, 3, 4],
        }
        status, said = posted(server, "/v2/models/echo/infer", {"inputs": [tensor]})
        server.post("/v2/systemsharedmemory/unregister", b"")
    assert status == 400
    assert "either data in the request or parameters.shared_memory_region" in said, said


def posted(server: Server, path: str, content: object) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{server.http}{path}", json.dumps(content).encode())
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
