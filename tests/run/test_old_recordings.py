"""Recordings that were made before requests had lengths are read, and decided as they were then.

Both were made at commit 17ad03ce, the last one without lengths: one by `serve --record` while more calls came
than two emulated GPUs could answer, one by `simulate --trace`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import astrarium
from astrarium.cli.main import main

MADE_THEN = Path(__file__).parent / "recordings" / "before-lengths"
SOURCES = [(MADE_THEN / "served.jsonl", '["step",'), (MADE_THEN / "simulated", "[")]


def recorded(source: Path) -> str:
    return (source / "trace.jsonl" if source.is_dir() else source).read_text()


@pytest.mark.parametrize(("source", "step"), SOURCES, ids=["served", "simulated"])
def test_an_old_recording_is_decided_as_it_was(source: Path, step: str) -> None:
    text = recorded(source)
    assert "RequestArrived" in text
    assert "Drop" in text
    assert "length" not in text, "it is of the earlier format"
    replayed = astrarium.replay(source)
    assert replayed.same, str(replayed)
    assert replayed.steps == sum(line.startswith(step) for line in text.splitlines()) > 30
    assert not replayed.cut


@pytest.mark.parametrize("source", [source for source, _ in SOURCES], ids=["served", "simulated"])
def test_the_verb_replays_it(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["replay", str(source)])
    assert not ending.value.code
    assert "the same decisions in all" in capsys.readouterr().out


def test_another_policy_decides_otherwise() -> None:
    """Else nothing would be compared."""
    for source, _ in SOURCES:
        assert not astrarium.replay(source, "eager").same
