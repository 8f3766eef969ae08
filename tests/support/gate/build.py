"""Builds the preloaded gate and the stub driver from their sources, for tests that need no GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

GATE = ROOT / "native" / "gate"
STUB = GATE / "stub"
FLAGS = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
SONAME = "libcuda.so.1"
REAL = "libcuda_gate_real.so"


class Built(NamedTuple):
    gate: Path
    stub: Path


def build(folder: Path) -> Built:
    """The gate, and beside it the stub under the name by which the gate looks for the real driver."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the gate and the stub driver cannot be built")
    stub = folder / SONAME
    compile_library(compiler, stub, sorted(STUB.glob("*.c")), SONAME, "-Wl,-Bsymbolic")
    return Built(build_gate(compiler, folder, stub), stub)


def build_gate(compiler: str, folder: Path, stub: Path) -> Path:
    """It is linked to an empty library, whose name is then what it needs."""
    placeholder = folder / "placeholder" / REAL
    placeholder.parent.mkdir()
    empty = placeholder.with_suffix(".c")
    empty.touch()
    run(compiler, *FLAGS, f"-Wl,-soname,{REAL}", str(empty), "-o", str(placeholder))
    gate = folder / "libastrarium_gate.so"
    paths = ("-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", f"-L{placeholder.parent}")
    compile_library(compiler, gate, gate_sources(), SONAME, *paths, f"-l:{REAL}")
    (folder / REAL).symlink_to(stub)
    return gate


def gate_sources() -> list[Path]:
    return [path for path in sorted(GATE.rglob("*.c")) if path.parent != STUB]


def compile_library(compiler: str, into: Path, sources: list[Path], soname: str, *linking: str) -> None:
    files = map(str, sources)
    run(compiler, *FLAGS, f"-I{GATE}", f"-Wl,-soname,{soname}", *files, "-o", str(into), *linking, "-ldl")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
