"""A sick GPU on a live cluster of this machine: NVML is not there, all else is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.jobs import arbiter, check_accounts, cluster_file, results

pytestmark = pytest.mark.long
pytest_plugins = ("tests.support.cli_fixtures", "tests.support.cluster.fixtures")

NVML = """\
import pathlib
from tests.support.cluster.fake_nvml import FileNvml

nvml = FileNvml(4, pathlib.Path(__file__).with_name("nvml.json"))


def __getattr__(name):
    return getattr(nvml, name)
"""


@pytest.mark.thorough
def test_a_sick_gpu_is_drained_shown_and_tried_again(
    call: Any, home: Path, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text(NVML)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[4]}")
    command = f"{sys.executable} {script} 120 0.05"
    apps = [{"name": name, "gpus": 2, "length": "6s", "command": command} for name in ("a", "b")]
    state = ("--state", str(home), "--wait", "60")
    with arbiter(cluster_file(tmp_path, script, apps=apps, policy={"name": "fifo"}), home, "--stay") as one:
        one.start()
        one.waited(lambda: len(list(home.glob("apps/*/job-0/run-1/ready"))) == 2, "both run")
        (tmp_path / "nvml.json").write_text('{"broken": {"3": 15}}')
        one.waited(lambda: one.query("SELECT * FROM runs WHERE app = 1 AND outcome = 'stopped'"), "it stops")
        answer = call("cluster", "status", *state[:2], "--json").json
        [failed] = answer["failed"]
        assert (failed["machine"], failed["number"]) == ("machine-1", 1)
        assert (failed["why"], failed["retrying"]) == ("NVML: GPU is lost", False)
        assert (answer["gpus"], answer["unwatched"]) == (3, [])
        shown = call("cluster", "status", *state[:2]).out
        assert "machine-1:1" in shown
        assert "NVML: GPU is lost" in shown
        assert call("cluster", "gpu", "retry", "1:1", *state).out == "1:1: accepted\n"
        one.kill()  # what is out of use stays so, and what was asked for too
        one.start()
        one.waited(lambda: one.query("SELECT * FROM meta WHERE key = 'epoch' AND value = 2"), "another one")
        refused = call("cluster", "gpu", "drain", "1:1", *state)
        assert "expected a GPU of machine 1 that is in use: 0 (got 1)" in refused.err
        assert "such as 0:2 (got 'left')" in call("cluster", "gpu", "retry", "left", *state).err
        assert (
            "the number or name of a machine: 0 (machine-0)"
            in call("cluster", "gpu", "retry", "9:0", *state).err
        )
        (tmp_path / "nvml.json").write_text("{}")
        one.waited(lambda: len(one.query("SELECT * FROM apps WHERE outcome = 'finished'")) == 2, "all ends")
        assert call("cluster", "gpu", "drain", "machine-0:0", "--why", "fan", *state).code == 0
        one.waited(lambda: "fan" in call("cluster", "status", *state[:2]).out, "it is shown")
        left = call("cluster", "status", *state[:2], "--json").json["failed"]
        assert [gpu["why"] for gpu in left] == ["fan"]
        assert one.send(2) == 0
        check_accounts(one)
    expected = {"sum": sum(n * n for n in range(120)), "count": 120}
    assert results(home) == {("a", 0): expected, ("b", 0): expected}
    assert one.query("SELECT count(*) FROM leases WHERE outcome = 'lost'") == [(1,)]
    words = one.words.read_text()
    assert "GPU 3 (1:1) is out of use: NVML: GPU is lost" in words
    assert "GPU 3 is in use again" in words
