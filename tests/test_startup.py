"""While commands start: they say what they wait for, and Ctrl-C ends them at once with all they have started.

All of them are started together, each waits for something that takes minutes, and is then interrupted.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from astrarium.run import waiting as engine
from astrarium.run.waiting import waiting
from tests.support.paths import ROOT
from tests.support.server.live_server import eventually, serving

MARK = "ASTRARIUM_TEST_OF_STARTING"  # in the environment of all that a command starts
MINUTES = "import time\ntime.sleep(600)\n"
PATIENCE = 60.0  # seconds; what is waited for takes ten times as long

FILES = {
    "fakes/torch/__init__.py": MINUTES,
    "fakes/ray/__init__.py": "import time\nfrom . import util\n"
    "def is_initialized(): return False\ndef init(**options): time.sleep(600)\n",
    "fakes/ray/util/__init__.py": "placement_group = None\n",
    "fakes/ray/util/scheduling_strategies.py": "class NodeAffinitySchedulingStrategy: ...\n",
    "model.py": MINUTES + "def echo(TEXT):\n    return {'TEXT': TEXT}\n",
    "train.py": "def build(values, workers): ...\n",
    "tune.yaml": """
train: train.py:build
goal: min
space: {rate: {low: 0.1, high: 1}}
search: {name: random, candidates: 4, iterations: 3}
gpus: 4
emulated: {}
""",
    "serve.yaml": """
cluster: {gpus: 2}
models:
  echo:
    backend: {python: model.py:echo}
    inputs: [{name: TEXT, datatype: BYTES, shape: [1]}]
    outputs: [{name: TEXT, datatype: BYTES, shape: [1]}]
    profile: {table: {1: 2ms, 32: 20ms}}
    slo: 50ms
""",
    "hook.yaml": """
cluster: {gpus: 1}
models:
  resnet50: {profile: zoo:1080Ti/ResNet50, slo: 25ms, preprocess: "model.py:echo"}
""",
    "cluster.yaml": """
machines: [{count: 1, gpus: 1}]
policy: {name: fifo}
live: {backend: ray}
apps: [{name: one, length: 1h, command: "true"}]
""",
    "optimize.py": """
import os
import optuna
from astrarium.tuning.optuna import optimize

def left():
    return [pid for task in os.listdir("/proc/self/task")
            for pid in open(f"/proc/self/task/{task}/children").read().split()]

optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study()
try:
    optimize(study, lambda trial: None, gpus=2, emulated=True, folder="optimized")
except KeyboardInterrupt:
    print("interrupted, and there are left:", left(), os.listdir("."))
""",
}


class Case(NamedTuple):
    words: list[str]
    said: str
    how: str = "group"  # Ctrl-C at a terminal; "main" for a signal to the first process only
    number: int = signal.SIGINT
    code: int = 130
    ends: str = "interrupted\n"  # what it says


TUNE = "starting 4 processes, which import torch and the training ..."
SERVE = "starting 2 workers, which load echo ..."
CASES = {
    "tune": Case(["run", "tune.yaml", "--out", "tuned"], TUNE),
    "tune, by a signal": Case(["run", "tune.yaml", "--out", "tuned"], TUNE, "main"),
    "tune, terminated": Case(["run", "tune.yaml", "--no-folder"], TUNE, "main", signal.SIGTERM, 143, "s\n"),
    "tune, killed": Case(["run", "tune.yaml", "--no-folder"], TUNE, "main", signal.SIGKILL, -9, "s\n"),
    "serve": Case(["serve", "serve.yaml", "--http", "0"], SERVE),
    "serve, terminated": Case(
        ["serve", "serve.yaml", "--http", "0", "--log", "json"], SERVE, "main", signal.SIGTERM, 143, "}\n"
    ),
    "a hook of the frontend": Case(
        ["serve", "hook.yaml", "--http", "0"], "starting 1 worker, which load resnet50"
    ),
    "profile": Case(["profile", "model.py:echo", "--input", "TEXT:BYTES:1"], "loading model ..."),
    "cluster": Case(["run", "cluster.yaml"], "looking for the machines (ray) ..."),
}


class Command(NamedTuple):
    home: Path
    process: subprocess.Popen[bytes]
    mark: str

    @property
    def err(self) -> str:
        return (self.home / "err.txt").read_text()

    def family(self) -> list[int]:
        """All processes that it has started, whoever their parents are by now."""
        found = []
        for each in Path("/proc").glob("[0-9]*/environ"):
            try:
                environment = each.read_bytes()
            except OSError:
                continue
            found += [int(each.parent.name)] if f"{MARK}={self.mark}\0".encode() in environment else []
        return found


def begin(home: Path, name: str, words: list[str]) -> Command:
    for file, text in FILES.items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(text)
    searched = os.pathsep.join([str(home / "fakes"), *filter(None, sys.path)])
    mark = f"{os.getpid()} {name}"
    with (home / "err.txt").open("wb") as err, (home / "out.txt").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=home, stdout=out, stderr=err, start_new_session=True,
            env={**os.environ, "PYTHONPATH": searched, MARK: mark}, preexec_fn=_hear_interrupts,
        )  # fmt: skip
    return Command(home, process, mark)


def _hear_interrupts() -> None:
    """Also where the tests run in the background of a shell, which has them ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Command]]:
    started: dict[str, Command] = {}
    try:
        for name, case in CASES.items():
            home = tmp_path_factory.mktemp("home")
            started[name] = begin(home, name, ["-m", "astrarium", *case.words])
        home = tmp_path_factory.mktemp("home")
        started["optimize"] = begin(home, "optimize", ["optimize.py"])
        yield started
    finally:
        for command in started.values():
            for pid in command.family():
                os.kill(pid, signal.SIGKILL)
            command.process.wait()


def interrupt(command: Command, how: str, number: int) -> None:
    """It ends without what it waits for."""
    send = os.killpg if how == "group" else os.kill
    send(command.process.pid, number)
    command.process.wait(PATIENCE)


@pytest.mark.parametrize("name", CASES)
def test_a_command_says_what_it_waits_for_and_can_be_interrupted(
    name: str, commands: dict[str, Command]
) -> None:
    check(CASES[name], commands[name])


@pytest.mark.thorough  # two processes that compute
def test_processes_of_a_search_for_the_goodput_end_with_it(tmp_path: Path) -> None:
    """Without native code Python simulates, in processes."""
    without = tmp_path / "fakes" / "sitecustomize.py"
    without.parent.mkdir()
    without.write_text("import sys; sys.modules['astrarium._simulator'] = None\n")
    file = str(ROOT / "examples" / "dynamic.yaml")
    words = ["goodput", file, "-o", "workload.duration=3000s", "-j", "2", "--no-folder"]
    command = begin(tmp_path, "goodput", ["-m", "astrarium", *words])
    eventually(lambda: len(command.family()) == 3, "its processes")
    check(Case(words, "goodput of astrarium ..."), command)


def check(case: Case, command: Command) -> None:
    """That it says what it waits for, and that nothing is left of it when it is interrupted."""
    eventually(lambda: case.said in command.err or command.process.poll() is not None, case.said)
    assert case.said in command.err
    interrupt(command, case.how, case.number)
    assert command.process.returncode == case.code
    assert "Traceback" not in command.err
    assert command.err.endswith(case.ends)
    eventually(lambda: not command.family(), "the end of all its processes")
    assert not list(command.home.glob("tuned*"))
    assert (command.home / "out.txt").read_text() == ""


def test_from_python_it_is_a_keyboard_interrupt(commands: dict[str, Command]) -> None:
    command = commands["optimize"]
    eventually(lambda: "starting 2 processes, which import torch" in command.err, command.err)
    interrupt(command, "main", signal.SIGINT)
    said = (command.home / "out.txt").read_text()
    assert "interrupted, and there are left: []" in said
    assert "'optimized'" not in said
    assert not command.family()


def test_a_second_interrupt_does_not_wait_for_the_last_answers(tmp_path: Path) -> None:
    file = tmp_path / "slow.yaml"
    file.write_text("cluster: {gpus: 1}\nmodels: {slow: {profile: {table: {1: 600s}}, slo: 1200s}}\n")
    with serving(file) as server:
        body = '{"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}'
        url = f"http://{server.http}/v2/models/slow/infer"
        call = subprocess.Popen(["curl", "-s", url, "-d", body], stdout=subprocess.DEVNULL)
        eventually(lambda: server.metric("astrarium_waiting_requests") + _busy(server) > 0, "a request")
        server.process.send_signal(signal.SIGINT)
        said = _until(server.process, "draining")
        server.process.send_signal(signal.SIGINT)
        _, rest = server.process.communicate(timeout=PATIENCE)
        call.wait(60)
    assert server.process.returncode == 130
    assert "Traceback" not in said + rest
    assert rest.endswith("interrupted\n")


def _busy(server: Any) -> float:
    return float(server.metric("astrarium_shared_memory_bytes"))


def _until(process: subprocess.Popen[str], word: str) -> str:
    said = ""
    assert process.stderr is not None
    while word not in said:
        said += process.stderr.readline()
    return said


class Over:
    """An event that comes at the third time that somebody waits for it."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.waits) == 3


def test_a_log_has_a_line_after_two_seconds_and_then_now_and_then() -> None:
    over = Over()
    said = list[str]()
    engine._in_lines("loading", over, said.append)  # type: ignore[arg-type]
    assert over.waits == [2.0, 10.0, 10.0]
    assert said == ["loading ... 0 s"] * 2


def test_what_is_quick_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "PATIENCE", 3600.0)
    with waiting("loading"):
        pass
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_line_goes_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PATIENCE", 0.0)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with waiting("loading"):
        eventually(lambda: "loading ... 0 s" in terminal.getvalue(), "the line")
    assert terminal.getvalue().endswith("\x1b[2K")
