"""`astrarium gate` without a GPU: what it refuses, and the whole way with a stub driver."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from astrarium.gate import driver
from astrarium.gate.board import Board
from astrarium.gate.driver import probe
from tests.support.gate.build import Built
from tests.support.gate.fakes import Call, calling, fake_control, fresh_user
from tests.support.paths import ROOT

pytest_plugins = ("tests.support.gate.fixtures",)

PATIENCE = 60.0

# What a CUDA program does, in the shortest form: some kernels, a word, and the end when it is told.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support.gate.program import Gpu
gpu = Gpu("libcuda.so.1")
gpu.start()
stream = gpu.stream()
kernels = [gpu.kernel("gemm", 3000), gpu.kernel("elementwise", 1000)]
for iteration in range(4):
    for kernel in kernels:
        assert gpu.launch(kernel, stream=stream) == 0
    gpu.check("cuStreamSynchronize", stream)
print("ready", flush=True)
sys.stdin.readline()
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fresh_user(tmp_path, monkeypatch)


@pytest.fixture
def no_driver(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no library: whatever this machine has, it is not asked."""
    (place / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("ASTRARIUM_CUDA_DRIVER", str(place / "libcuda.so.1"))


@pytest.fixture
def stub(gate_built: Built, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose GPU is the stub."""
    (place / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("ASTRARIUM_CUDA_DRIVER", str(gate_built.stub))
    monkeypatch.setenv("ASTRARIUM_GATE_LIBRARY", str(gate_built.gate))


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return calling(capsys, monkeypatch)


def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`astrarium gate` as a process of its own: it may become another program."""
    command = [sys.executable, "-m", "astrarium", "gate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.usefixtures("no_driver")
def test_without_a_gpu_it_says_what_was_looked_for(call: Call) -> None:
    code, out, err = call("run", "--class", "latency", "--", "true")
    assert (code, out) == (2, "")
    assert "no GPU 0" in err
    assert "libcuda.so.1" in err
    assert not Path("board").exists()


@pytest.mark.usefixtures("no_driver")
def test_without_a_gpu_the_program_may_run_unchanged() -> None:
    script = 'echo "$1" "[$LD_PRELOAD]"; grep SigIgn /proc/self/status; exit 7'
    done = shell("run", "--class", "latency", "--allow-no-gpu", "--", "sh", "-c", script, "x", "--gpu")
    assert done.returncode == 7
    first, ignored = done.stdout.splitlines()
    assert first == "--gpu []"
    assert int(ignored.split()[1], 16) & 1 << signal.SIGPIPE - 1 == 0
    assert "sh runs without the gate" in done.stderr


@pytest.mark.usefixtures("no_driver")
def test_the_program_is_the_process_that_signals_reach() -> None:
    done = shell("run", "--class", "latency", "--allow-no-gpu", "--", "sh", "-c", "kill -TERM $$")
    assert done.returncode == -signal.SIGTERM


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--class", "fast", "--", "true"], "--class: expected latency or best-effort (got 'fast')"),
        (["--class", "latency", "--", "no-such-program"], "COMMAND: expected a program"),
        (["--class", "latency", "--policy", "orian", "--", "true"], "did you mean 'orion'"),
        (["--class", "latency", "--profile", "none", "--", "true"], "--profile: expected a file"),
        (["--class", "latency", "--policy", "mps", "--no-mps", "--", "true"], "--policy: expected another"),
    ],
)
def test_bad_input_is_refused_even_if_no_gpu_is_needed(call: Call, options: list[str], message: str) -> None:
    code, _, err = call("run", "--allow-no-gpu", *options)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@contextmanager
def running(*options: str, code: int = 0) -> Iterator[subprocess.Popen[str]]:
    """The program under the gate, past its launches; ends with *code*."""
    command = [sys.executable, "-m", "astrarium", "gate", "run", *options, "--", sys.executable, "program.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, str(code)], text=True, **pipes) as program:  # type: ignore[call-overload]
        assert program.stdout is not None
        word = program.stdout.readline()
        if word != "ready\n":
            raise AssertionError(word + program.communicate()[1])
        yield program
        program.communicate("\n", timeout=PATIENCE)
        assert program.returncode == code


@pytest.mark.usefixtures("stub")
def test_the_driver_is_asked_for_its_gpu(gate_built: Built) -> None:
    assert probe(gate_built.stub, "0") == driver.GpuInfo("Stub GPU", 132)
    assert driver.count_gpus({driver.DRIVER_VARIABLE: str(gate_built.stub)}) == 1


def test_without_a_driver_that_answers_there_are_no_gpus(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    assert driver.count_gpus({driver.DRIVER_VARIABLE: str(tmp_path / "libcuda.so.1")}) == 0


@pytest.mark.usefixtures("stub")
def test_two_programs_share_the_gpu(call: Call) -> None:
    latency = ["--class", "latency", "--name", "serve", "--set", "window=100us"]
    with running(*latency, code=3), running("--class", "best-effort") as other:
        shown = json.loads(call("top", "--json")[1])
        assert (shown["policy"], shown["settings"]["window"], shown["sms"]) == ("astrarium", 100_000, 132)
        clients = {client["name"]: client for client in shown["clients"]}
        assert {name: client["kind"] for name, client in clients.items()} == {
            "serve": "latency", "program": "best-effort",
        }  # fmt: skip
        assert [client["launches"] for client in clients.values()] == [8, 8]
        assert clients["program"]["pid"] == other.pid  # it has taken the launcher's place
    assert Board(Path("board")).view().clients == []


@pytest.mark.thorough
@pytest.mark.usefixtures("stub")
def test_who_comes_later_does_not_change_the_policy_of_others(call: Call) -> None:
    with running("--class", "latency", "--name", "serve", "--policy", "orion"):
        refused = call("run", "--class", "best-effort", "--policy", "reef-n", "--", "true")
        assert refused[0] == 2
        assert "--policy: expected orion, as serve runs with it" in refused[2]
        refused = call("run", "--class", "best-effort", "--set", "depth=3", "--", "true")
        assert "--set: expected depth=12, as serve runs with it" in refused[2]
        with running("--class", "best-effort", "--policy", "orion", "--set", "depth=12"):
            assert call("policy", "reef-n", "--set", "depth=3")[0] == 0
        assert json.loads(call("policy", "--json")[1])["policy"] == "reef-n"
    with running("--class", "latency"):  # yesterday's is nobody's
        assert Board(Path("board")).view().policy == "astrarium"
    with running("--class", "latency", "--policy", "streams"):  # and nobody is there to mind
        assert Board(Path("board")).view().policy == "streams"


@pytest.mark.usefixtures("stub")
def test_a_program_that_is_killed_leaves_nothing_behind(call: Call) -> None:
    with running("--class", "latency", code=-signal.SIGKILL) as program:
        program.kill()
    assert len(Board(Path("board")).view().clients) == 1
    assert json.loads(call("top", "--json")[1])["clients"] == []


@pytest.mark.usefixtures("stub")
def test_programs_are_told_where_mps_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_control(place, monkeypatch)
    script = 'echo "$CUDA_MPS_PIPE_DIRECTORY"'
    for where in ("MPS, started now", "MPS"):
        done = shell("run", "--class", "latency", "--policy", "mps", "--", "sh", "-c", script)
        assert done.stdout == f"{place}/cache/astrarium/gate/mps/pipe\n"
        assert done.stderr.endswith(f", {where}\n")
    done = shell("run", "--class", "latency", "--no-mps", "--", "sh", "-c", script)
    nowhere = f"{place}/cache/astrarium/gate/no-mps\n"  # also where the machine has a daemon
    assert (done.stdout, done.stderr.endswith("no MPS: not wanted\n")) == (nowhere, True)


@pytest.mark.usefixtures("stub")
def test_the_policy_that_needs_mps_is_refused_without(call: Call) -> None:
    code, _, err = call("run", "--class", "latency", "--policy", "mps", "--", "true")
    assert code == 2
    assert "one that does without MPS" in err
    assert not Path("board").exists()


@pytest.mark.usefixtures("stub")
def test_a_profile_is_recorded_and_shown() -> None:
    done = shell("profile", "--json", "--", sys.executable, "program.py", "5")
    assert done.returncode == 5, done.stderr
    assert done.stdout.startswith("ready\n")
    shown = json.loads(done.stdout.splitlines()[1])
    assert (shown["file"], shown["repeats"]) == ("program.kernels", True)
    kernels = {kernel["name"]: kernel for kernel in shown["kernels"]}
    assert {name: (kernel["kind"], kernel["count"]) for name, kernel in kernels.items()} == {
        "gemm": ("compute", 4), "elementwise": ("memory", 4),
    }  # fmt: skip
    assert Path("program.kernels").read_text().startswith("astrarium-kernels 1\n")
    assert not list(Path().glob(".program.kernels*"))
    assert "written to program.kernels" in shell("profile", "--", sys.executable, "program.py").stdout
    done = shell("run", "--class", "latency", "--profile", "program.kernels", "--", "printenv")
    assert f"ASTRARIUM_GATE_PROFILE={Path('program.kernels').absolute()}\n" in done.stdout


@pytest.mark.usefixtures("stub")
def test_a_profile_is_written_over_nothing_but_a_profile(call: Call) -> None:
    assert "a new file, or a kernel profile" in call("profile", "--out", "program.py", "--", "true")[2]
    assert "a folder that is there" in call("profile", "--out", "no/file", "--", "true")[2]
    assert "it launched no kernels" in call("profile", "--out", "file", "--", "true")[2]
    killed = call("profile", "--out", "file", "--", "sh", "-c", "kill -TERM $$")
    assert "a signal ended it before it could write (exit code 143)" in killed[2]
    assert not Path("file").exists()


@pytest.mark.usefixtures("stub")
def test_threads_are_marked_under_the_gate(call: Call) -> None:
    marking = """
from astrarium.gate import marked, phase_end, request_end
from astrarium.gate.board import Board
from pathlib import Path
with marked("best-effort", name="train"):
    gpu.launch(kernels[0], stream=gpu.stream())
    phase_end()
    request_end()
    for client in Board(Path("board")).view().clients:
        print(client.name, client.kind, client.launches, client.phases)
"""
    Path("marked.py").write_text(PROGRAM.split("print(")[0] + marking)
    done = shell("run", "--class", "latency", "--", sys.executable, "marked.py")
    assert done.stdout.splitlines() == ["marked latency 8 0", "train best-effort 1 1"], done.stderr


def test_mps_is_stopped_on_demand(place: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    fake_control(place, monkeypatch)
    assert call("mps")[1] == "no MPS\n"
    assert call("mps", "start")[1] == "MPS, started now\n"
    assert call("mps")[1] == "MPS\n"
    assert call("mps", "stop")[1] == "MPS stopped\n"
    assert call("mps", "stop")[1].startswith("no MPS that was started")
    assert "did you mean 'stop'" in call("mps", "stopp")[2]
