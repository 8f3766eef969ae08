"""The guide to tuning with Ray Tune is followed to the letter, and its example runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import BLOCK
from tests.support.paths import ROOT
from tests.support.tuning.ray_cluster import QUIET

pytestmark = [pytest.mark.long, pytest.mark.thorough]

PAGE = ROOT / "docs" / "tuning" / "ray_tune.md"
EXAMPLE = ROOT / "examples" / "tuning" / "ray_trainable.py"
FILE_NAME = re.compile(r"# (\w+\.py)\n")
LONGEST = 240

pytest.importorskip("ray.tune")
pytest.importorskip("torch")


def called(place: Path, *words: str) -> str:
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(place)}
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commands(body: str) -> list[str]:
    return [line.removeprefix("python ") for line in body.splitlines() if line.startswith("python ")]


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    printed = ""
    checked = 0
    for language, body in BLOCK.findall(PAGE.read_text()):
        name = FILE_NAME.match(body)
        if name is not None:
            (tmp_path / name[1]).write_text(body)
        elif language == "sh":
            printed = "".join(called(tmp_path, sys.executable, *line.split()) for line in commands(body))
        elif language == "text":
            assert not [line for line in body.splitlines() if line not in printed.splitlines()], printed
            checked += 1
    assert checked == 3


def test_the_example_runs(tmp_path: Path) -> None:
    assert called(tmp_path, sys.executable, str(EXAMPLE)).startswith("loss 0.")


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text())
    assert targets
    assert not [target for target in targets if not (PAGE.parent / target).exists()]
