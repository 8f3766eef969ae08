"""astrarium profile --write measures what a call takes of the path, too: what is sent and written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.cli.serving.profile import path_time
from astrarium.core.quantities import MICROSECOND
from astrarium.server.path_trial.trial import NotMeasured, Sample
from astrarium.serving.scenario import Scenario, load
from tests.support.cli_fixtures import Told

pytest_plugins = ("tests.support.cli_fixtures",)
Call = Callable[..., Told]

CODE = """
import numpy as np

def ends(X):
    return X[:, :2].repeat(2, axis=1)

def texts(TEXT):
    return TEXT

texts.applications = {
    "short": lambda generator: {"TEXT": np.array([b"a"], object)},
    "long": lambda generator: {"TEXT": np.array([b"b" * 50], object)},
}
"""

SCENARIO = """
cluster: {gpus: 1}
models:
  ends:
    backend: {python: code.py:ends}
    inputs: [{name: X, datatype: FP32, shape: ["2..64"], values: [0, 1]}]
    outputs: [{name: Y, datatype: FP32, shape: [-1]}]
    slo: 10s
    max_batch: 4
  texts:
    backend: {python: code.py:texts}
    inputs: [{name: TEXT, datatype: BYTES, shape: [1]}]
    outputs: [{name: TEXT, datatype: BYTES, shape: [1]}]
    slo: 10s
"""


class Trials:
    """Trials are not made: what would be sent is kept."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def path_time(self, scenario: Scenario, name: str, sample: Sample) -> int:
        assert name in scenario.models
        self.samples.append(sample)
        return 8 * MICROSECOND


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    monkeypatch.chdir(tmp_path)
    Path("code.py").write_text(CODE)
    Path("scenario.yaml").write_text(SCENARIO)
    trials = Trials()
    monkeypatch.setattr(path_time, "path_time", trials.path_time)
    return trials


def profile(call: Call, *arguments: str) -> Told:
    return call("profile", "scenario.yaml", "--repeats", "5", *arguments)


def test_what_a_call_takes_of_the_path_is_written_beside_the_profile(trials: Trials, call: Call) -> None:
    answer = profile(call, "--model", "ends", "--write")
    assert "a call takes 8us of the busiest thread of the path: it carries 125,000 a second" in answer.out
    again = profile(call, "--model", "ends", "--write", "--json").json
    assert again["path_time"] == "8us"
    text = Path("scenario.yaml").read_text()
    assert text.count("path_time: 8us") == 1
    assert (
        load("scenario.yaml", ["models.texts.profile={table: [1ms]}"], serving=True).models["ends"].path_time
        == 8 * MICROSECOND
    )


def test_a_call_has_the_largest_size_or_the_mean_of_ones_own(trials: Trials, call: Call) -> None:
    np.savez("requests.npz", X=np.ones((2, 40), np.float32), lengths=np.array([20, 40]))
    profile(call, "--model", "ends", "--write")
    profile(call, "--model", "ends", "--write", "--data", "requests.npz")
    assert [sample.calls[0]["X"].shape for sample in trials.samples] == [(1, 64), (1, 30)]
    assert [sample.inputs[0].values for sample in trials.samples] == [(0, 1), (0, 1)]
    assert [(spec.name, spec.datatype, spec.shape) for spec in trials.samples[0].outputs] == [
        ("Y", "FP32", (4,))
    ]


def test_each_application_sends_calls_of_its_own(trials: Trials, call: Call) -> None:
    assert profile(call, "--model", "texts", "--write").code == 0
    assert [dict(one)["TEXT"].tolist() for one in trials.samples[0].calls] == [[[b"a"]], [[b"b" * 50]]]


@pytest.mark.parametrize("arguments", [["--write", "--no-path"], []])
def test_it_is_measured_only_where_it_is_wanted_and_can_be_written(
    trials: Trials, call: Call, arguments: list[str]
) -> None:
    assert "path_time" not in profile(call, "--model", "ends", *arguments, "--json").json
    assert trials.samples == []
    assert "path_time" not in Path("scenario.yaml").read_text()


def test_a_path_that_cannot_be_measured_leaves_the_profile(
    trials: Trials, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise NotMeasured("no port is free")

    monkeypatch.setattr(path_time, "path_time", refuse)
    answer = profile(call, "--model", "ends", "--write")
    assert answer.code == 0
    assert answer.err.splitlines()[-1] == "the path of calls was not measured: no port is free"
    assert "profile: ends.profile.yaml" in Path("scenario.yaml").read_text()


def test_a_model_with_preprocessing_is_not_measured(trials: Trials, call: Call) -> None:
    text = SCENARIO.replace("    slo: 10s\n    max", "    preprocess: code.py:ends\n    slo: 10s\n    max")
    Path("scenario.yaml").write_text(text)
    answer = profile(call, "--model", "ends", "--write")
    assert "the path of calls was not measured: its `preprocess` belongs to the path" in answer.err
    assert trials.samples == []
