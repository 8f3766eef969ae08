"""The benchmark of lanes, tried out on the CPU: what it counts is right, and it writes what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

pytest.importorskip("torch")

FOLDER = ROOT / "benchmarks" / "gpu"


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    from lanes_parts import sharing

    return sharing


class At:
    """An event of that time, in ms."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def elapsed_time(self, later: At) -> float:
        return later.ms - self.ms


def marks(sharing: Any, *turns: tuple[int, float, float]) -> list[Any]:
    """Of turns of (job, begin, end) in ms; the GPU's clock is 0.5 ms behind at every beginning."""
    placed = []
    for job, begin, end in turns:
        placed.append(sharing.Mark(job, True, round(begin * 1e6), At(begin + 0.5)))
        placed.append(sharing.Mark(job, False, round(end * 1e6), At(end)))
    return placed


def test_a_switch_is_from_the_end_of_a_turn_to_the_beginning_of_anothers(sharing: Any) -> None:
    turns = marks(sharing, (0, 0, 10), (1, 11, 20), (1, 25, 30), (0, 32, 40))
    assert sharing._gaps(turns) == [(1.0, 1.5), (2.0, 2.5)]


def test_sharing_is_compared_over_the_time_in_which_both_are_there(sharing: Any) -> None:
    turns = marks(sharing, (0, 0, 10), (0, 10, 20), (1, 21, 40), (0, 42, 50), (1, 63, 80), (1, 80, 99))
    alone = {0: 0.010, 1: 0.020}
    # from 21 to 42 ms: one iteration of job 1, and job 0 has begun its last
    assert sharing._slower(turns, alone) == pytest.approx(5.0)


@pytest.mark.thorough
def test_it_runs_to_the_end_and_writes_rows_with_their_bars(tmp_path: Path) -> None:
    parts = ["--only", "switch", "--only", "shares", "--only", "srtf", "--only", "inference"]
    command = [sys.executable, str(FOLDER / "lanes.py"), "--out", str(tmp_path), "--pretend", *parts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "lanes.json").read_text())
    assert content["failed"] == {}
    assert set(content["seconds"]) == {"switch", "shares", "srtf", "inference"}
    bars = {row["bar"] for row in content["rows"]}
    assert bars == {1.0, 5.0, 2.0, None}
    assert all(row["values"] for row in content["rows"])
    assert content["machine"]["gpu"] == "none (pretended)"
    assert (tmp_path / "lanes.md").read_text() in done.stdout


def test_an_unknown_part_is_named() -> None:
    command = [sys.executable, str(FOLDER / "lanes.py"), "--out", "x", "--pretend", "--only", "speed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "expected one of overhead, switch, shares, srtf, pack, inference (got speed)" in done.stderr
