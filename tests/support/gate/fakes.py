"""A user without a past, on a machine without MPS or with a pretended one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from astrarium.cli.main import main
from astrarium.gate import mps

Call = Callable[..., tuple[int, str, str]]
OURS = ("ASTRARIUM_", "CUDA_", "LD_PRELOAD", "LD_LIBRARY_PATH", "XDG_CACHE_HOME")

# A control program that remembers what it was asked, and whose daemon is a file.
CONTROL = """#!/bin/sh
echo "${1:-ask} $CUDA_MPS_PIPE_DIRECTORY ${CUDA_VISIBLE_DEVICES:-all}" >> CALLS
daemon="$CUDA_MPS_PIPE_DIRECTORY/daemon"
if [ "$1" = -d ]; then touch "$daemon"; exit STARTS; fi
read question
[ -e "$daemon" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
[ "$question" != quit ] || rm "$daemon"
"""


def fresh_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(OURS)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("ASTRARIUM_GATE_BOARD", str(folder / "board"))
    monkeypatch.setattr(mps, "MACHINES_PIPE", str(folder / "machine"))
    return folder


def fake_control(place: Path, monkeypatch: pytest.MonkeyPatch, starts: int = 0) -> Path:
    """On PATH; returns the file of its calls."""
    calls = place / "calls"
    script = place / "bin" / mps.CONTROL
    calls.touch()
    script.parent.mkdir(exist_ok=True)
    script.write_text(CONTROL.replace("CALLS", str(calls)).replace("STARTS", str(starts)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    return calls


def calling(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`astrarium gate` in this process: its exit code, and what it said and complained about."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # leave pytest's own handlers alone

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ending:
            main(["gate", *arguments])
        captured = capsys.readouterr()
        return int(ending.value.code or 0), captured.out, captured.err

    return run
