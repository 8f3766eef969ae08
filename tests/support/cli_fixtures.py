"""The command line, called in this process."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from astrarium.cli.main import main

LEVEL = re.compile(r"^[\w.-]+: [a-z A-Z]+ \((serving|device|tuning|cluster)\)$")


class Told:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def lines(self) -> list[str]:
        return [" ".join(line.split()) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The one line that tells what is wrong; only the level of the file may stand before it."""
        *before, last = self.err.splitlines()
        assert (self.code, self.out) == (2, ""), self.err
        assert last.startswith("error: ")
        assert len(before) <= 1
        assert all(LEVEL.search(line) for line in before), before
        return last

    @property
    def json(self) -> dict[str, Any]:
        assert self.out.count("\n") == 1, "one object on one line and nothing else"
        answer: dict[str, Any] = json.loads(self.out)
        return answer


@pytest.fixture
def drawn() -> None:
    """Pictures are drawn; in other tests that call the command line, an empty one stands for each."""


def _sketch(figure: Any, path: Path, **_: Any) -> None:
    path.write_bytes(b"\x89PNG")


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Any:
    if "drawn" not in request.fixturenames:  # it takes most of the time of a short run
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", _sketch)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # leave pytest's own handlers alone

    def run(*arguments: str) -> Told:
        with pytest.raises(SystemExit) as ending:
            main(list(arguments))
        captured = capsys.readouterr()
        code = ending.value.code
        return Told(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run
