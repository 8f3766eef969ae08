"""Profiles by size, of items with several open dimensions: what a scenario says of them, and how they run."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from astrarium.core.errors import InputError
from astrarium.core.profiles import BySize
from astrarium.serving.level import run
from astrarium.serving.report.summary import summarize
from astrarium.serving.scenario import build, parse

IMAGES = """
cluster: {gpus: 2}
models:
  detector:
    slo: 50ms
    max_batch: 16
    inputs: [{name: IMAGE, datatype: FP32, shape: [3, "64..512", "64..512"]}]
    outputs: [{name: CLASS, datatype: INT64, shape: [1]}]
    profile:
      lengths:
        128x128: {1: 1ms, 16: 3ms}
        128x512: {1: 1.5ms, 16: 6ms}
        512x128: {1: 1.5ms, 16: 6ms}
        512x512: {1: 3ms, 8: 15ms}
policy: {name: astrarium}
workload:
  arrivals: poisson
  rate: 500/s
  duration: 1s
  lengths: {weights: {100x100: 6, 128x500: 2, 300x64: 2, 512x512: 1}}
"""


def raw() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(IMAGES)
    return data


def test_sizes_are_read_and_written_as_they_stand() -> None:
    scenario = parse(raw())
    profile = scenario.models["detector"].profile
    assert isinstance(profile, BySize)
    assert profile.sizes == ((128, 128), (128, 512), (512, 128), (512, 512))
    written = yaml.safe_load(scenario.to_yaml())
    assert list(written["models"]["detector"]["profile"]) == ["lengths"]
    assert parse(written) == scenario


def test_requests_are_of_the_shapes_that_the_workload_says() -> None:
    scenario = parse(raw())
    profile = scenario.models["detector"].profile
    assert isinstance(profile, BySize)
    shapes = {profile.grid.shape(number) for number in build.arrivals(scenario).length.tolist()}
    assert shapes == {(100, 100), (128, 500), (300, 64), (512, 512)}


@pytest.mark.parametrize("engine", ["python", "native"])
@pytest.mark.parametrize("policy", ["astrarium", "eager", "turbo"])
def test_only_those_of_one_size_share_a_run(engine: Any, policy: str) -> None:
    data = raw()
    data["policy"] = {"name": policy}
    if policy == "turbo" and engine == "native":
        pytest.skip("it has no twin")
    record = run(parse(data), engine)
    summary = summarize(record)
    detector = summary.models["detector"]
    assert detector.mean_length is not None
    assert 30_000 < detector.mean_length < 70_000, "elements, not numbers"
    assert detector.padding is not None
    assert 0.1 < detector.padding < 0.5
    assert detector.attainment is not None
    assert detector.attainment > 0.9


def changed(**profile: Any) -> dict[str, Any]:
    data = copy.deepcopy(raw())
    data["models"]["detector"]["profile"] |= profile
    return data


FIELD = "models.detector.profile"
FOUR = {"128x128": {1: "1ms"}, "128x512": {1: "2ms"}, "512x128": {1: "2ms"}, "512x512": {1: "3ms"}}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"lengths": {**FOUR, "64": {1: "1ms"}}}, f"{FIELD}.lengths.64", "sizes such as 64x128"),
    ({"lengths": {"64x64": {1: "1ms"}, "128x128": {1: "2ms"}}}, f"{FIELD}.lengths", "64x128 too"),
    ({"lengths": {**FOUR, "512x512": {1: "1ms"}}}, f"{FIELD}.lengths.512x512.1", "for the length 512x128"),
    ({"lengths": {**FOUR, "512x128": {1: "1ms"}}}, f"{FIELD}.lengths.512x128.1", "at least 2ms, as for the"),
    ({"lengths": {**FOUR, "512x512": {1: "soon"}}}, f"{FIELD}.lengths.512x512.1", "a duration"),
    (
        {"lengths": {**FOUR, "512x512": {2: "3ms"}}},
        f"{FIELD}.lengths.512x512",
        "sizes that rise from 1",
    ),
    (
        {"lengths": {"8x8x8": {1: "1ms"}}},
        f"{FIELD}.lengths",
        "sizes such as 64x64, along dimension 1 of IMAGE and ",
    ),
    (
        {"lengths": {16384: {1: "1ms"}}},
        f"{FIELD}.lengths",
        "sizes such as 64x64, along dimension 1 of IMAGE and dimension 2 of IMAGE (got '16384')",
    ),
    ({"rounded": True}, f"{FIELD}.rounded", "one of lengths, together"),
    ({"together": "padded"}, f"{FIELD}.together", "one of bucket, length"),
]


@pytest.mark.parametrize(("profile", "field", "right"), BAD, ids=[right for *_, right in BAD])
def test_bad_sizes_are_refused(profile: dict[str, Any], field: str, right: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(changed(**profile))
    assert caught.value.field == field
    assert right in str(caught.value)


WORKLOADS: list[tuple[Any, str]] = [
    ({"weights": {"600x64": 1}}, "weights.600x64"),
    ({"constant": "64x64x3"}, "constant"),
    ({"samples": ["64x64", "64x1000"]}, "samples[1]"),
    ({"constant": "64x"}, "constant"),
]


@pytest.mark.parametrize(("lengths", "field"), WORKLOADS)
def test_workloads_of_other_sizes_are_refused(lengths: Any, field: str) -> None:
    data = raw()
    data["workload"]["lengths"] = lengths
    with pytest.raises(InputError) as caught:
        parse(data)
    assert caught.value.field == f"workload.lengths.{field}"
