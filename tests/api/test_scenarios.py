"""Scenarios from Python: files and plain data, overrides, and errors as those of a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import astrarium
from astrarium import levels
from astrarium.core.choice import Choice
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
FILES = ["quickstart.yaml", "jobs.yaml", "tuning/hyperband.yaml", "cluster/cluster.yaml"]
SERVING: dict[str, Any] = {
    "cluster": {"gpus": 1},
    "models": {"echo": {"profile": {"alpha": "1ms", "beta": "5ms"}, "slo": "25ms"}},
    "workload": {"arrivals": "poisson", "rate": "50/s", "duration": "1s"},
}


@pytest.mark.parametrize("file", FILES)
def test_keywords_and_names_change_what_the_command_line_would(file: str) -> None:
    name = levels.level_of(levels.load(EXAMPLES / file)).policies.names()[-1]
    scenario = astrarium.load(EXAMPLES / file, {"policy": name}, seed=7)
    assert scenario == levels.load(EXAMPLES / file, [f"policy={name}", "seed=7"])
    assert scenario.seed == 7


@pytest.mark.parametrize("file", FILES)
def test_a_scenario_is_the_same_from_its_own_text(file: str) -> None:
    import yaml

    scenario = astrarium.load(EXAMPLES / file)
    again = astrarium.load(yaml.safe_load(scenario.to_yaml()))
    assert again.to_yaml() == scenario.to_yaml()


def test_plain_data_may_hold_what_python_has() -> None:
    data = {**SERVING, "seed": np.int64(3), "policy": Choice("timeout", {"timeout": "10%"})}
    served = astrarium.load(data, {"workload.rate": "80/s"})
    assert (served.seed, served.policy) == (3, Choice("timeout", {"timeout": "10%"}))
    assert "80" in served.to_yaml()


@pytest.mark.parametrize(
    ("overrides", "written"),
    [
        ({"policy.name": "eagre"}, "policy.name=eagre"),
        ({"cluster.gpus": "two"}, "cluster.gpus=two"),
        ({"modells.echo.slo": "1ms"}, "modells.echo.slo=1ms"),
        ({"models.ecko.slo": "1ms"}, "models.ecko.slo=1ms"),
        ({"workload.rate": -3}, "workload.rate=-3"),
    ],
)
def test_errors_are_those_of_the_command_line(
    overrides: dict[str, Any], written: str, tmp_path: Path
) -> None:
    import yaml

    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(SERVING))
    with pytest.raises(astrarium.InputError) as of_python:
        astrarium.simulate(astrarium.load(file, overrides))
    with pytest.raises(astrarium.InputError) as of_command:
        astrarium.simulate(levels.load(file, [written]))
    shown = [str(error.value).replace(f"-o {written}: ", f"{file}: ") for error in (of_python, of_command)]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"gpus": 3}, "a scenario: cluster, models and workload"),
        (3, "a file, a mapping such as a file holds, or a scenario"),
        ("nowhere.yaml", "a scenario file that can be read"),
    ],
)
def test_what_is_no_scenario_is_said(source: Any, message: str) -> None:
    with pytest.raises(astrarium.InputError, match=message):
        astrarium.load(source)
    with pytest.raises(astrarium.InputError):
        astrarium.simulate(source)


def test_all_names_are_there_and_import_nothing_heavy_before_they_are_used() -> None:
    for name in astrarium.__all__:
        assert getattr(astrarium, name) is not None
    with pytest.raises(AttributeError, match="simulat'"):
        astrarium.simulat  # type: ignore[attr-defined]  # noqa: B018
    assert set(astrarium.__all__) <= set(dir(astrarium))
    code = "import sys, astrarium; print([name for name in sys.modules if name.startswith('astrarium.')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_type_checkers_are_told_that_there_are_types() -> None:
    assert (Path(astrarium.__file__).parent / "py.typed").is_file()
