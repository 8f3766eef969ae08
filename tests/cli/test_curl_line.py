"""The request that `serve` suggests is short, within the limits of the model, and works as it is."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astrarium.cli.serving.curl_line import curl_line
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.scenario.server_options import ServerOptions
from tests.support.server.live_server import PATIENCE, serving
from tests.support.server.native_network import OPEN

LARGE = """
cluster: {gpus: 1}
models:
  vit:
    profile: {alpha: 1ms, beta: 1ms}
    slo: 20s
    inputs: [{name: IMAGE, datatype: FP16, shape: [3, 64, 64]}, {name: KIND, datatype: INT32, shape: [1]}]
policy: {name: eager}
"""


def line_for(*inputs: TensorSpec) -> str:
    running: Any = SimpleNamespace(service=SimpleNamespace(cards=lambda: [replace(OPEN, inputs=inputs)]))
    return curl_line(running, "http://x", ServerOptions())


@pytest.mark.parametrize(("values", "shown"), [(None, 1), ((0, 9), 1), ((5, 9), 5), ((-3, -2), -2)])
def test_it_is_within_the_limits(values: Any, shown: int) -> None:
    assert f'"data":[{shown},{shown}]' in line_for(TensorSpec("IN", "INT64", (2,), values))


def test_what_may_not_be_zero_is_written_out() -> None:
    assert line_for(TensorSpec("IN", "INT64", (100,), (5, 9))).count("5,") == 99


def test_a_line_for_large_tensors_is_short_and_works(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text(LARGE)
    with serving(tmp_path / "large.yaml") as server:
        line = re.search(r"^ *(\(printf .*)$", server.said, re.MULTILINE)
        assert line is not None, server.said
        assert len(line[1]) < 500
        shown = subprocess.run(line[1], shell=True, capture_output=True, check=True, timeout=PATIENCE)
    outputs = json.loads(shown.stdout)["outputs"]
    assert outputs[0]["shape"] == [1, 3, 64, 64]
