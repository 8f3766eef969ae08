"""A recording is there up to the last second, and never stands in the way of the server that makes it."""

from __future__ import annotations

import errno
import logging
import resource
import signal
import subprocess
import sys
import threading
import time
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.core.trace import Step
from astrarium.server.recording import FLUSH_SECONDS, End, Header, Recording, RecordingReader
from astrarium.serving.contract import (
    Dispatch,
    GpuSpec,
    ModelSpec,
    Request,
    RequestArrived,
    Setup,
    latency_table,
)
from tests.support.live_fakes import Stage
from tests.support.server.live_server import PATIENCE, Server, eventually, serving

SETUP = Setup((ModelSpec(0, "m", 25, latency_table([5, 6])),), (GpuSpec(0),))
STEP = Step(7, (RequestArrived(Request(0, 0, 5, 30)),), (Dispatch(0, (0,)),))


def test_a_recording_holds_each_schedulers_steps_apart(tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    recording = Recording(file, Header("cluster: {}", "1"))
    first = recording.section(SETUP)
    first(STEP)
    first(STEP)
    recording.section(SETUP)(STEP)
    recording.close()
    recorded = RecordingReader(file)
    assert recorded.header.scenario == "cluster: {}"
    assert [(setup, list(steps)) for setup, steps in recorded.sections()] == [
        (SETUP, [STEP, STEP]),
        (SETUP, [STEP]),
    ]


def test_a_recording_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    recording = Recording(file, Header("", "1"))
    step = recording.section(SETUP)
    step(STEP)
    step(STEP)
    recording.close()
    header, section, first, second, end = file.read_bytes().splitlines(keepends=True)
    for left, steps_left, cut in (
        ([header, section, first, second, end], [STEP, STEP], False),
        ([header, section, first, second, end[:-3]], [STEP, STEP], True),
        ([header, section, first, second], [STEP, STEP], True),
        ([header, section, first, second[:-5]], [STEP], True),
        ([header, section, first, second[:-1]], [STEP], True),
        ([header, section[:20]], None, True),
    ):
        file.write_bytes(b"".join(left))
        reader = RecordingReader(file)
        sections = [list(steps) for _, steps in reader.sections()]
        assert (sections, reader.cut) == ([] if steps_left is None else [steps_left], cut)


def test_a_recording_ends_at_its_limit_and_the_server_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    recording = Recording(file, Header("", "1"), limit=1000)
    step = recording.section(SETUP)
    for _ in range(100):
        step(STEP)
    recording.close()
    assert file.stat().st_size < 1200


@pytest.mark.parametrize("text", ["", "{}\n", "not json\n"])
def test_another_file_is_no_recording(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other"
    file.write_text(text)
    with pytest.raises(InputError):
        RecordingReader(file)


class FullDisk(FileIO):
    """A file that takes so many bytes in all, in pieces of at most 100."""

    def __init__(self, path: Path, room: int) -> None:
        super().__init__(path, "wb")
        self.room = room

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        piece = memoryview(data)[: min(100, self.room)]
        self.room -= len(piece)
        return super().write(piece) or 0


def test_a_full_disk_ends_the_recording_with_one_line_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "recording.jsonl"
    recording = Recording(file, Header("", "1"), opened=lambda path: FullDisk(path, 700))
    step = recording.section(SETUP)
    assert recording.goes_on
    for _ in range(50):
        step(STEP)
    eventually(lambda: not recording.goes_on, "it has found the disk full")
    recording.section(SETUP)(STEP)  # another scheduler takes over
    recording.close()
    reader = RecordingReader(file)
    (kept,) = [list(steps) for _, steps in reader.sections()]
    assert set(map(str, kept)) == {str(STEP)}
    assert reader.cut
    assert file.stat().st_size == 700
    assert recording.lost == 50 - len(kept) + 2  # and the section that came later, with its step
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert messages == [f"the recording {file} ends here, and the server goes on: No space left on device"]


def test_a_disk_that_is_slower_than_the_policy_ends_the_recording_and_holds_no_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writing = threading.Event()
    goes_on = threading.Event()

    class SlowDisk(FileIO):
        def write(self, data: Any) -> int:
            writing.set()
            assert goes_on.wait(PATIENCE)
            return super().write(data) or 0

    file = tmp_path / "recording.jsonl"
    slow = Recording(file, Header("", "1"), queue_limit=2000, opened=lambda path: SlowDisk(path, "wb"))
    step = slow.section(SETUP)
    step(STEP)
    assert writing.wait(PATIENCE)
    for _ in range(100):
        step(STEP)
    assert not slow.goes_on
    assert slow.lost > 50
    goes_on.set()
    slow.close()
    reader = RecordingReader(file)
    (kept,) = [list(steps) for _, steps in reader.sections()]
    assert len(kept) == 101 - slow.lost  # whole up to where it ends, and it says so
    assert not reader.cut
    assert "2000 bytes wait for a disk that is slower than the policy" in file.read_text().splitlines()[-1]
    assert len(caplog.records) == 1


def test_what_was_noted_is_in_the_file_soon_also_when_nothing_follows(tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    recording = Recording(file, Header("", "1"))
    recording.section(SETUP)(STEP)
    eventually(lambda: file.read_bytes().count(b"\n") == 3, "it is in the file")
    assert FLUSH_SECONDS <= 1
    recording.close()


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "no" / "folder", Header("", "1"))
    with pytest.raises(InputError, match=r"server\.record.*a file that can be written: No such file"):
        recording.section(SETUP)
    recording.close()


def test_a_recording_that_fails_in_the_middle_of_a_step_is_not_the_policys_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(line: object) -> bytes:
        raise TypeError("no JSON")

    monkeypatch.setattr(Stage, "natively", False)
    stage = Stage()
    recording = Recording(tmp_path / "recording.jsonl", Header("", "1"))
    stage.coordinator._recorder = recording.section
    stage.coordinator.begin(stage.plan.setup)
    encode = recording._encode
    recording._encode = lambda line: encode(line) if isinstance(line, End) else fails(line)
    for _ in range(3):
        stage.call()
        stage.wait(30)
    assert recording.lost >= 3
    assert stage.coordinator.policy_errors == 0
    assert len(stage.ended) == 3
    stage.check_the_accounts()


SCENARIO = "cluster: {gpus: 1}\nmodels:\n  quick: {profile: {alpha: 0.1ms, beta: 1ms}, slo: 20s}\n"
BODY = b'{"inputs": [{"name": "INPUT", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}'


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    return file


def replayed(file: Path) -> str:
    command = [sys.executable, "-m", "astrarium", "replay", str(file)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout


def call(server: Server, times: int) -> None:
    for _ in range(times):
        server.post("/v2/models/quick/infer", BODY)


def test_a_full_disk_under_a_server_ends_its_recording_and_nobodys_call(scenario: Path) -> None:
    with serving(scenario, "--record", "/dev/full") as server:
        call(server, 5)
        eventually(lambda: server.metric("astrarium_recording") == 0, "the recording has stopped")
        call(server, 5)
        assert server.metric("astrarium_policy_errors_total") == 0
        assert server.metric("astrarium_recording_lost_steps_total") >= 10
        assert '"ready":true' in server.get("/v2/health/ready")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read().count("No space left on device") == 1


def test_what_fitted_on_the_disk_replays(scenario: Path, tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    with serving(scenario, "--record", str(file)) as server:
        most = file.stat().st_size + 3000  # in the middle of a step
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))
        call(server, 30)
        eventually(lambda: server.metric("astrarium_recording") == 0, "the recording has stopped")
        call(server, 5)
        assert server.metric("astrarium_policy_errors_total") == 0
        assert server.stop() == 0
    assert file.stat().st_size == most
    assert "was cut off" in replayed(file)


def test_a_server_that_is_killed_leaves_all_but_the_last_second(scenario: Path, tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    with serving(scenario, "--record", str(file)) as server:
        call(server, 10)
        time.sleep(2 * FLUSH_SECONDS)
        eventually(lambda: file.read_text().count("RequestArrived") >= 10, "all of them are in the file")
        server.process.kill()
        server.process.wait(PATIENCE)
    replay = replayed(file)
    assert "the same decisions in all" in replay
    assert "was cut off" in replay
