"""Scenario files as scenarios of one level."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.levels import load
from astrarium.tuning.scenario.read import TuningScenario


def load_cluster(path: str | Path, overrides: Sequence[str] = ()) -> ClusterScenario:
    loaded = load(path, overrides)
    assert isinstance(loaded, ClusterScenario)
    return loaded


def load_tuning(path: str | Path, overrides: Sequence[str] = ()) -> TuningScenario:
    loaded = load(path, overrides)
    assert isinstance(loaded, TuningScenario)
    return loaded
