"""Who may call: keys, where they are asked for, and the files that they come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from astrarium.core.errors import InputError
from astrarium.server.protocol.keys import Keys
from astrarium.server.running import read_keys
from astrarium.server.settings import Security
from tests.support.server.fakes import WAYS, Served, served
from tests.support.server.http_connection import BODY

KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module", params=WAYS)
def locked(request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(security=Security(keys=KEYS), way=request.param) as running:
        yield running


SHOWN = [
    ({}, 401),
    ({"Authorization": "Bearer first-key"}, 200),
    ({"Authorization": "bearer second-key"}, 200),
    ({"X-API-Key": "second-key"}, 200),
    ({"Authorization": "Bearer first-ke"}, 401),
    ({"Authorization": "Bearer first-keyy"}, 401),
    ({"Authorization": "Basic first-key"}, 401),
    ({"Authorization": "Bearer "}, 401),
    ({"X-API-Key": ""}, 401),
    ({"X-API-Key": "sécond"}, 401),
]


@pytest.mark.parametrize(("headers", "status"), SHOWN)
@pytest.mark.parametrize("path", ["/v2", "/metrics", "/", "/openapi.json", "/v2/models/echo/ready"])
def test_pages_want_a_key(locked: Served, path: str, headers: dict[str, str], status: int) -> None:
    assert locked.ask("GET", path, headers=headers)[0].status == status


def test_without_a_key_nothing_is_learnt_but_health(locked: Served) -> None:
    assert locked.ask("GET", "/v2/health/live")[0].status == 200
    assert locked.ask("GET", "/v2/health/ready")[0].status == 200
    assert locked.ask("GET", "/no/such/path")[0].status == 401
    response, content = locked.ask("POST", "/v2/models/echo/infer", BODY)
    assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
    assert "first-key" not in content.decode()
    assert len(locked.service.calls) == 0


def test_grpc_wants_the_same_keys(locked: Served) -> None:
    with triton_grpc.InferenceServerClient(locked.grpc_url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.get_server_metadata(headers={"authorization": "Bearer first-key"}).name == "astrarium"
        assert client.get_server_metadata(headers={"x-api-key": "second-key"}).name == "astrarium"
        for headers in ({}, {"authorization": "Bearer third"}, {"x-api-key": ""}):
            with pytest.raises(InferenceServerException) as caught:
                client.get_server_metadata(headers=headers)
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"


def test_grpc_streams_want_a_key_too(locked: Served) -> None:
    with grpc.insecure_channel(locked.grpc_url) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(iter([b""]))
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("key", ["", " ", " a", "ключ"])
def test_a_key_that_cannot_be_shown_is_no_key(key: str) -> None:
    with pytest.raises(InputError, match="API key"):
        Keys(["good", key])


def test_keys_stay_out_of_logs() -> None:
    assert "first-key" not in repr(Security(keys=KEYS))


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("one\ntwo\n", ("one", "two")),
        ("# ours\n\n  one \t\r\n\t# theirs\n#\ntwo # three\n\n", ("one", "two # three")),
        ("one\none\n", ("one", "one")),
        ("\ufeffone\n", ("one",)),
    ],
)
def test_a_file_of_keys_may_have_comments(tmp_path: Path, text: str, keys: tuple[str, ...]) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(text)
    assert read_keys(file) == keys


@pytest.mark.parametrize("text", ["", "\n \n", "# comment\n", "#one\n\n#two"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(text)
    with pytest.raises(
        InputError, match="one key on each line; blank lines and lines that begin with #"
    ) as caught:
        read_keys(file)
    assert caught.value.field == "server.api_keys"


def test_a_file_of_keys_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_bytes(b"\xff\xfe\xfd")
    for place in (tmp_path / "keys.txt", tmp_path):
        with pytest.raises(InputError, match="a file of text that can be read"):
            read_keys(place)
