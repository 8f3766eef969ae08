"""The CUDA driver that tests of graphs run on: it needs no GPU, but a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from astrarium.core.optional import extension


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None or extension("_worker") is None:
        pytest.skip("no C compiler, or no native code: nothing to run a fake driver with")
    file = tmp_path_factory.mktemp("cuda") / "libfake_cuda.so"
    source = Path(__file__).with_name("fake_cuda_driver.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", str(source), "-o", str(file)], check=True)
    return file
