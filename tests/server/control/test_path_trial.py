"""A path trial serves a model's tensors and asks for as much as is answered; the server says what it took."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest

from astrarium.core.quantities import SECOND
from astrarium.server.path_trial import trial
from astrarium.server.path_trial.clients import Client
from astrarium.server.path_trial.trial import NotMeasured, Sample, path_time
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.scenario import Scenario, parse

LARGE = 1 << 20


def scenario(**server: object) -> Scenario:
    return parse(
        {
            "cluster": {"gpus": 4},
            "models": {"m": {"profile": {"table": ["1s"]}, "slo": "9s", "max_batch": 8}},
            "server": {"http": 1, "grpc": 2, "threads": 1, **server},
        },
        serving=True,
    )


def sample(size: int) -> Sample:
    tensors = (TensorSpec("X", "UINT8", (size,), (0, 9), False),), (TensorSpec("Y", "UINT8", (size,)),)
    return Sample(*tensors, ({"X": np.ones((1, size), np.uint8)},))


def test_calls_take_time_of_the_path_and_large_ones_more() -> None:
    """A megabyte is copied in and out, and looked at: that takes tenfold what sixteen bytes do, and more."""
    small, large = (path_time(scenario(), "m", sample(size)) for size in (16, LARGE))
    assert 0 < 4 * small < large < SECOND


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(NotMeasured, match=r"did not start: .*server\.memory"):
        path_time(scenario(memory="900TiB"), "m", sample(16))


def test_calls_that_are_refused_measure_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_SECONDS", 0.5)
    beyond = Sample(sample(16).inputs, sample(16).outputs, ({"X": np.full((1, 16), 10, np.uint8)},))
    with pytest.raises(NotMeasured, match=r"statuses {'400': "):
        path_time(scenario(), "m", beyond)


def test_a_client_asks_again_when_it_has_the_whole_answer() -> None:
    """Answers come in pieces, and with as many bytes as their heads say."""
    heard: list[bytes] = []
    statuses: list[str] = []
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for status in (b"200 OK", b"429 Too Many Requests", b"200 OK"):
            heard.append(await reader.readexactly(4))
            for piece in (b"HTTP/1.1 " + status, b"\r\nContent-Le", b"ngth: 3\r\n\r", b"\na", b"bc"):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        heard.append(await reader.readexactly(4))
        writer.close()
        closed.set()

    async def asking() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        await asyncio.get_running_loop().create_connection(
            partial(Client, b"call", statuses.append), host, port
        )
        await closed.wait()
        server.close()

    asyncio.run(asking())
    assert heard == [b"call"] * 4
    assert statuses == ["200", "429", "200"]
