"""astrarium profile of models whose inputs have an open dimension: times by length and batch size."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml

from astrarium.cli.serving.profile.by_length import by_length, rising
from astrarium.cli.serving.profile.measuring import Wanted
from astrarium.core.lengths import lengths_between
from astrarium.serving.live import fills
from astrarium.serving.live.backends.contract import Batch, Result
from astrarium.serving.live.profiling import Care
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.scenario import load
from tests.support.cli_fixtures import Told

pytest_plugins = ("tests.support.cli_fixtures",)
Call = Callable[..., Told]

CODE = """
def mean(X):
    return X.mean(axis=1, keepdims=True)

def masked_sum(X, MASK):
    return (X * MASK).sum(axis=1, keepdims=True)
"""

SCENARIO = """
cluster: {gpus: 1}
models:
  texts:
    backend: {python: code.py:masked_sum}
    inputs:
      - {name: X, datatype: FP32, shape: ["1..64"]}
      - {name: MASK, datatype: FP32, shape: ["1..64"]}
    mask: MASK
    outputs: [{name: Y, datatype: FP32, shape: [1]}]
    slo: 10s
    max_batch: 4
workload: {arrivals: poisson, rate: 10/s, duration: 1s, lengths: {constant: 9}}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    return tmp_path


def profile(call: Call, *arguments: str) -> Told:
    return call("profile", "--repeats", "5", *arguments)


def test_every_size_is_measured_at_every_length(home: Path, call: Call) -> None:
    answer = profile(call, "scenario.yaml", "--json")
    section = answer.json["profile"]
    assert list(section) == ["lengths"], (
        "it may be padded, since it has a mask, and no graph rounds its lengths"
    )
    assert [int(length) for length in section["lengths"]] == lengths_between(1, 64)
    assert all(list(table) == ["1", "2", "3", "4"] for table in section["lengths"].values())


def test_the_profile_is_one_that_its_scenario_is_simulated_with(home: Path, call: Call) -> None:
    assert profile(call, "scenario.yaml", "--write", "--no-path").code == 0
    scenario = load(home / "scenario.yaml")
    assert scenario.has_lengths
    assert json.loads(call("simulate", "scenario.yaml", "--json", "--no-folder").out)["attainment"] == 1.0


def test_a_model_that_padding_changes_is_said_to_run_equal_lengths_only(home: Path, call: Call) -> None:
    text = yaml.safe_load(SCENARIO)
    entry = text["models"]["texts"]
    entry["backend"] = {"python": "code.py:mean"}
    entry["inputs"].pop()
    del entry["mask"]
    (home / "scenario.yaml").write_text(yaml.safe_dump(text))
    assert profile(call, "scenario.yaml", "--json").json["profile"]["together"] == "length"


def test_without_a_range_it_asks_for_one(home: Path, call: Call) -> None:
    (home / "scenario.yaml").write_text(SCENARIO.replace('"1..64"', "-1"))
    error = profile(call, "scenario.yaml").error
    assert 'X: shape: expected a range in the place of -1, such as "1..512"' in error


def with_requests(lengths: list[int]) -> None:
    rows = np.ones((len(lengths), max(lengths)), np.float32)
    np.savez("requests.npz", X=rows, lengths=np.array(lengths))


def test_requests_of_ones_own_decide_the_lengths(home: Path, call: Call) -> None:
    with_requests([9] * 60 + [10] * 30 + [40] * 10)
    told = profile(call, "scenario.yaml", "--data", "requests.npz", "--json").json
    assert [int(length) for length in told["profile"]["lengths"]] == [9, 10, 40, 64]
    assert told["requests"] == {"9": 0.6, "10": 0.3, "40": 0.1, "64": 0.0}
    assert "padding" not in told, "without graphs nothing is rounded"
    shown = profile(call, "scenario.yaml", "--data", "requests.npz").out
    assert "60.0%" in shown


class InGraphs:
    """A model that has graphs for the lengths that it is profiled at; it sums up what the mask leaves."""

    inputs = fills.marked(
        (
            TensorSpec("X", "FP32", (-1,), ranges=((1, 64),)),
            TensorSpec("MASK", "FP32", (-1,), ranges=((1, 64),)),
        ),
        mask="MASK",
    )
    outputs: tuple[TensorSpec, ...] = (TensorSpec("Y", "FP32", ()),)
    buckets = (9, 10, 40, 64)
    graph_sizes = (1, 4)

    def padding_is(self, safe: bool) -> None:
        assert safe

    def warm_up(self, sizes: Sequence[int]) -> None:
        """Do nothing: no time is looked at here."""

    def run(self, batch: Batch) -> Result:
        return Result({"Y": (batch.inputs["X"] * batch.inputs["MASK"]).sum(axis=1)})

    def close(self) -> None:
        """Do nothing."""


def test_how_often_each_length_comes_is_kept_for_those_who_capture_graphs(home: Path) -> None:
    with_requests([9] * 60 + [10] * 30 + [40] * 10)
    wanted = Wanted("texts", 4, None, 0.95, 0.0, home / "requests.npz")
    model = InGraphs()
    measured = by_length(model, model.inputs, Care(0, 5), wanted).profile
    assert measured["rounded"]
    assert measured["shares"] == {9: 0.6, 10: 0.3, 40: 0.1, 64: 0.0}
    made_up = by_length(model, model.inputs, Care(0, 5), wanted._replace(data=None)).profile
    assert "shares" not in made_up


def test_so_many_lengths_as_are_wanted_are_measured(home: Path, call: Call) -> None:
    with_requests([9] * 60 + [10] * 30 + [40] * 10)
    told = profile(call, "scenario.yaml", "--data", "requests.npz", "--buckets", "2", "--json").json
    assert [int(length) for length in told["profile"]["lengths"]] == [10, 64]
    assert told["requests"] == {"10": 0.9, "64": 0.1}


def test_a_model_is_measured_with_such_requests(
    home: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "code.py").write_text(
        "def masked_sum(X, MASK):\n"
        "    if X.shape[1] == 40 and not (X == 7).all(): raise ValueError(X)\n"
        "    return (X * MASK).sum(axis=1, keepdims=True)\n"
    )
    rows = np.zeros((2, 40), np.float32)
    rows[0, :40] = 7
    rows[1, :9] = 1
    np.savez("requests.npz", X=rows, lengths=np.array([40, 9]))
    assert profile(call, "scenario.yaml", "--data", "requests.npz").code == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--data", "requests.npz"],
            "--data.lengths[1]: expected from 1 to 64, as X and its rows are",
        ),
        (["--buckets", "3"], "--buckets: expected --data beside it"),
    ],
)
def test_requests_that_the_model_does_not_take_are_refused(
    home: Path, call: Call, arguments: list[str], complaint: str
) -> None:
    with_requests([9, 65])
    assert complaint in profile(call, "scenario.yaml", *arguments).error


IMAGES = """
cluster: {gpus: 1}
models:
  images:
    backend: {python: code.py:of_image}
    inputs:
      - {name: X, datatype: FP32, shape: ["8..64", "8..16"]}
      - {name: MASK, datatype: FP32, shape: ["8..64", "8..16"]}
    mask: MASK
    outputs: [{name: Y, datatype: FP32, shape: [1, 1]}]
    slo: 10s
    max_batch: 2
workload: {arrivals: poisson, rate: 10/s, duration: 1s, lengths: {weights: {8x8: 1, 50x16: 2}}}
"""


@pytest.fixture
def images(home: Path) -> Path:
    (home / "code.py").write_text(
        "def of_image(X, MASK):\n    return (X * MASK).sum(axis=(1, 2), keepdims=True)\n"
    )
    (home / "scenario.yaml").write_text(IMAGES)
    return home


def test_images_are_measured_at_every_size_along_both_axes(images: Path, call: Call) -> None:
    section = profile(call, "scenario.yaml", "--json").json["profile"]
    assert list(section) == ["lengths"]
    assert list(section["lengths"]) == ["8x8", "8x16", "16x8", "16x16", "32x8", "32x16", "64x8", "64x16"]
    assert profile(call, "scenario.yaml", "--write", "--no-path").code == 0
    assert load(images / "scenario.yaml").has_lengths
    assert json.loads(call("simulate", "scenario.yaml", "--json", "--no-folder").out)["attainment"] == 1.0


def test_images_of_ones_own_decide_the_sizes(images: Path, call: Call) -> None:
    sizes = np.array([[10, 16]] * 30 + [[50, 9]] * 10)
    np.savez("requests.npz", X=np.ones((40, 50, 16), np.float32), lengths=sizes)
    told = profile(call, "scenario.yaml", "--data", "requests.npz", "--buckets", "3", "--json").json
    assert list(told["profile"]["lengths"]) == ["10x9", "10x16", "50x9", "64x9", "50x16", "64x16"]
    assert {size: share for size, share in told["requests"].items() if share} == {"10x16": 0.75, "50x9": 0.25}
    assert told["padding"] == 0.0


@pytest.mark.parametrize(
    ("low", "high", "lengths"),
    [
        (1, 512, [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]),
        (100, 300, [128, 192, 256, 300]),
        (5, 5, [5]),
        (1, 3, [1, 2, 3]),
    ],
)
def test_lengths_are_half_as_long_again_or_less_from_one_to_the_next(
    low: int, high: int, lengths: list[int]
) -> None:
    assert lengths_between(low, high) == lengths


def test_noise_makes_no_longer_request_look_cheaper() -> None:
    noisy = {16: {1: 5, 2: 9}, 32: {1: 4, 2: 10}, 64: {1: 6}}
    assert rising(noisy) == {16: {1: 5, 2: 9}, 32: {1: 5, 2: 10}, 64: {1: 6}}
