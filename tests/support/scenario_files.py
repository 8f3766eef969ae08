"""Scenario files as scenarios of one level."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.levels import load
from astrarium.tuning.scenario.read import TuningScenario


def load_cluster(path: str | Path, overrides: Sequence[str] = ()) -> ClusterScenario:
    found = load(path, overrides)
    assert isinstance(found, ClusterScenario)
    return found


def load_tuning(path: str | Path, overrides: Sequence[str] = ()) -> TuningScenario:
    found = load(path, overrides)
    assert isinstance(found, TuningScenario)
    return found
