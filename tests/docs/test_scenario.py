"""Every scenario in docs/scenario.md loads and runs; every field of the schema is mentioned there."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from astrarium.core.profiles import Application, Dynamic, TimeChange
from astrarium.serving.level import run
from astrarium.serving.scenario import load
from astrarium.serving.scenario.cluster import Cluster, GpuGroup
from astrarium.serving.scenario.schema import Delays, ModelEntry, Preemption, Profiling
from astrarium.serving.scenario.server_options import ServerOptions, Tls
from astrarium.serving.scenario.tensor_entries import TensorEntry
from astrarium.serving.scenario.workload import Workload
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "scenario.md").read_text()
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text()
SCENARIOS = re.findall(r"```yaml\n(.*?)```", PAGE + README, re.DOTALL)


@pytest.mark.parametrize("text", SCENARIOS)
def test_the_scenario_runs(text: str, tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(EXAMPLES / "models")
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    record = run(load(path, ["workload.duration=3s"]))
    assert (record.requests.outcome > 0).all()
    assert len(record.requests.outcome) > 100


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) == 7


PARTS = [Cluster, GpuGroup, ModelEntry, Dynamic, Application, TimeChange, Workload, Delays, Preemption]


@pytest.mark.parametrize("part", [*PARTS, Profiling, TensorEntry, ServerOptions, Tls])
def test_every_field_is_described(part: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(part):
        assert re.search(rf"\b{field.name}\b", PAGE), field.name
