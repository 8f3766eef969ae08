"""Items with several open dimensions through a real server: scheduled by their sizes, and padded to those."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from astrarium.core.size_grid import Size, SizeGrid, rounded_up
from astrarium.server.recording import RecordingReader
from astrarium.serving.contract import RequestArrived
from tests.support.server.live_server import Server, serving

GRID = SizeGrid([(4, 4), (4, 9), (8, 4), (8, 9)])
MODELS = """
import numpy as np


def seen(X):
    with open("seen.txt", "a") as file:
        file.write("%d %d\\n" % X.shape[1:])


def mean(X, MASK):
    seen(X)
    return (X * MASK).sum(axis=(1, 2)) / MASK.sum(axis=(1, 2))


def plain_mean(X):
    seen(X)
    return X.mean(axis=(1, 2))
"""
SCENARIO = """
cluster: {gpus: 1}
policy: {name: timeout, timeout: 50ms}
server: {device: cpu, record: recording.jsonl}
models:
  mean:
    backend: {python: models.py:mean}
    mask: MASK
    inputs:
      - &image {name: X, datatype: FP32, shape: ["1..9", "1..12"]}
      - {name: MASK, datatype: FP32, shape: [-1, -1]}
    outputs: &outputs [{name: Y, datatype: FP32, shape: []}]
    profile: &sizes
      lengths: {4x4: &times {1: 1ms, 32: 2ms}, 4x9: *times, 8x4: *times, 8x9: *times}
    slo: 5s
  plain: {backend: {python: models.py:plain_mean}, profile: *sizes, outputs: *outputs, slo: 5s,
    inputs: [*image]}
"""
SHAPES: list[Size] = [*product((1, 4, 5, 8), (3, 4, 9)), (9, 3), (2, 12)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("sizes")
    (folder / "models.py").write_text(MODELS.replace("seen.txt", str(folder / "seen.txt")))
    (folder / "scenario.yaml").write_text(SCENARIO)
    return folder


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with serving(home / "scenario.yaml") as running:
        yield running


def answered(server: Server, model: str, shape: Size) -> None:
    data = np.resize([1.0, 2.0], shape)
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, *shape], "data": data.ravel().tolist()}
    said = json.loads(server.post(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode()))
    assert said["outputs"][0]["data"] == [pytest.approx(data.mean())]


def run_as(home: Path, server: Server, model: str) -> set[Size]:
    """The shapes that the model saw of batches of all shapes."""
    (home / "seen.txt").write_text("")
    with ThreadPoolExecutor(len(SHAPES)) as threads:
        list(threads.map(lambda shape: answered(server, model, shape), SHAPES))
    lines = (home / "seen.txt").read_text().splitlines()
    return {tuple(map(int, line.split())) for line in lines}


def test_images_are_padded_to_the_buckets_of_both_axes(home: Path, server: Server) -> None:
    assert run_as(home, server, "mean") == {rounded_up(shape, GRID.axes) for shape in SHAPES}


def test_where_padding_changes_answers_images_run_as_they_are(home: Path, server: Server) -> None:
    assert run_as(home, server, "plain") == set(SHAPES)


def test_metrics_add_up_no_numbers_of_shapes(server: Server) -> None:
    answered(server, "mean", (4, 4))
    assert "astrarium_request_length_total{" not in server.get("/metrics")


def test_network_threads_number_shapes_as_python_does(home: Path, server: Server) -> None:
    for shape in SHAPES:
        answered(server, "mean", shape)
    server.stop()
    recorded = RecordingReader(home / "recording.jsonl")
    arrived = [
        event.request.length
        for _, steps in recorded.sections()
        for step in steps
        for event in step.events
        if isinstance(event, RequestArrived) and event.request.model == 0
    ]
    assert arrived[-len(SHAPES) :] == list(map(GRID.number, SHAPES))
