"""The page of the API is what its generator makes, and the scripts for each kind of user run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import astrarium
from tests.support.api_page import SECTIONS, page
from tests.support.paths import ROOT

SCRIPTS = sorted((ROOT / "examples" / "python").glob("*.py"))
NEEDS = {"data_scientist": "torch", "platform_engineer": "scipy"}
TRAINS = "data_scientist"  # in processes that import PyTorch, which takes long


def test_the_page_is_what_the_docstrings_say() -> None:
    advice = "python -m tests.support.api_page docs/api.md makes it again"
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == page(), advice


def test_the_page_has_every_name() -> None:
    named = {name for home, names in SECTIONS.values() if home == "astrarium" for name in names}
    assert named == set(astrarium.__all__) - {"__version__"}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_run(script: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(NEEDS.get(script.stem, "numpy"))
    runpy.run_path(str(script), run_name="simulated" if script.stem == TRAINS else "__main__")
    output = capsys.readouterr().out
    assert output.strip()
    assert script.read_text().count("# %%") >= 4


@pytest.mark.thorough
def test_the_script_that_trains_does_so(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    runpy.run_path(str(ROOT / "examples" / "python" / f"{TRAINS}.py"), run_name="__main__")
    assert "the best: {'rate':" in capsys.readouterr().out
