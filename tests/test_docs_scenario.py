"""Every scenario in docs/scenario.md loads and runs; every field of the schema is mentioned there."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from astrarium.core.profiles import Application, Dynamic, TimeChange
from astrarium.experiments.run import run
from astrarium.scenario import load
from astrarium.scenario.schema import Cluster, Delays, GpuGroup, ModelEntry, Preemption, Profiling, Workload
from astrarium.scenario.serving_schema import ServerOptions, TensorEntry, Tls

PAGE = (Path(__file__).parent.parent / "docs" / "scenario.md").read_text()
EXAMPLES = Path(__file__).parent.parent / "examples"
README = (Path(__file__).parent.parent / "README.md").read_text()
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
    assert len(SCENARIOS) == 5


PARTS = [Cluster, GpuGroup, ModelEntry, Dynamic, Application, TimeChange, Workload, Delays, Preemption]


@pytest.mark.parametrize("part", [*PARTS, Profiling, TensorEntry, ServerOptions, Tls])
def test_every_field_is_described(part: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(part):
        assert re.search(rf"\b{field.name}\b", PAGE), field.name
