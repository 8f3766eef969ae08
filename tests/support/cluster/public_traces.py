"""Public traces of clusters: tests are skipped where their folder is neither beside the project nor named."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from astrarium.cluster.workloads.traces import read_trace
from tests.support.paths import ROOT

DATA = Path(os.environ.get("ASTRARIUM_CLUSTER_DATA", ROOT.parent / "shared/data/cluster"))


read_philly, read_shockwave, read_tiresias = (
    partial(read_trace, format=name) for name in ("philly", "shockwave", "tiresias")
)


def recorded(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {name} beside the project: ASTRARIUM_CLUSTER_DATA may name its folder")
    return path
