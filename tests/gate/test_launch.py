"""How a program comes under the gate: a driver found, a folder made, MPS started, an environment composed."""

from __future__ import annotations

import os
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

import astrarium
from astrarium.cli.gate.options import name_of
from astrarium.core.errors import AstrariumError, InputError
from astrarium.gate import driver, mps
from astrarium.gate import library as gate_files
from astrarium.gate.client import Client, client_environment
from astrarium.gate.driver import NoGpu, chosen_gpu, find_driver
from tests.support.gate.fakes import fake_control, fresh_user

ELF = b"\x7fELF\x02"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fresh_user(tmp_path, monkeypatch)


def test_a_driver_is_found_by_the_loaders_rules(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def library(folder: str, content: bytes = ELF) -> Path:
        path = place / folder / "libcuda.so.1"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        return path

    narrow = library("narrow", b"\x7fELF\x01")
    stubs = library("cuda/stubs")
    cached = library("cached")
    usual = library("usual")
    named = library("named")
    monkeypatch.setattr(driver, "FOLDERS", (str(usual.parent),))
    monkeypatch.setattr(driver, "_loader_cache", lambda: iter([narrow, stubs, cached]))
    searched = {"LD_LIBRARY_PATH": f"{place}:{named.parent}:"}
    assert find_driver(searched) == named
    assert find_driver({}) == cached
    monkeypatch.setattr(driver, "_loader_cache", lambda: iter(()))
    assert find_driver({}) == usual
    assert find_driver({**searched, "ASTRARIUM_CUDA_DRIVER": str(narrow)}) == narrow
    usual.unlink()
    with pytest.raises(NoGpu, match="LD_LIBRARY_PATH, the loader's cache"):
        find_driver({})
    with pytest.raises(InputError, match="ASTRARIUM_CUDA_DRIVER"):
        find_driver({"ASTRARIUM_CUDA_DRIVER": str(usual)})


def test_gpus_are_counted_within_those_that_are_visible() -> None:
    assert chosen_gpu(2, {}) == "2"
    assert chosen_gpu(1, {"CUDA_VISIBLE_DEVICES": "3, GPU-5"}) == "GPU-5"
    with pytest.raises(InputError, match="below 1"):
        chosen_gpu(1, {"CUDA_VISIBLE_DEVICES": "3"})
    for hidden in ("", "-1"):
        with pytest.raises(NoGpu, match="hides every GPU"):
            chosen_gpu(0, {"CUDA_VISIBLE_DEVICES": hidden})


def test_the_environment_of_a_client() -> None:
    gate = Path("/home/a/.cache/astrarium/gate/new/libcuda.so.1")
    old = gate.parent.parent / "old" / "libcuda.so.1"
    base = {
        "LD_PRELOAD": f"/lib/libjemalloc.so {old}",
        "LD_LIBRARY_PATH": f"{old.parent}:/opt/lib",
        "ASTRARIUM_GATE_RECORD": "somebody else's",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "PATH": "/bin",
    }
    client = Client("train", "3", "best-effort", Path("/dev/shm/b"), "orion", Path("/p"), coverage=True)
    assert client_environment(base, gate, client) == {
        "PATH": "/bin",
        "LD_PRELOAD": f"{gate}:/lib/libjemalloc.so",
        "LD_LIBRARY_PATH": f"{gate.parent}:/opt/lib",
        "CUDA_VISIBLE_DEVICES": "3",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        "ASTRARIUM_GATE_BOARD": "/dev/shm/b",
        "ASTRARIUM_GATE_CLASS": "best-effort",
        "ASTRARIUM_GATE_NAME": "train",
        "ASTRARIUM_GATE_POLICY": "orion",
        "ASTRARIUM_GATE_PROFILE": "/p",
        "ASTRARIUM_GATE_COVERAGE": "1",
    }


def test_what_the_user_has_set_stays() -> None:
    base = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    environment = client_environment(base, Path("/h/x/libcuda.so.1"), Client("a", "0", record=Path("r")))
    assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert environment["ASTRARIUM_GATE_RECORD"] == str(Path("r").absolute())
    assert "ASTRARIUM_GATE_BOARD" not in environment
    assert environment["LD_PRELOAD"] == "/h/x/libcuda.so.1"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-u", "jobs/train.py", "--lr", "1"], "train"),
        (["python", "-m", "package.tool"], "package.tool"),
        (["/opt/bin/serve", "x.yaml"], "serve"),
        (["bash"], "bash"),
    ],
)
def test_programs_are_called_what_people_call_them(command: list[str], name: str) -> None:
    assert name_of(command, None) == name
    assert name_of(command, "mine") == "mine"


def test_launchers_that_start_together_make_one_folder(place: Path) -> None:
    library = place / "libastrarium_gate.so"
    library.write_bytes(b"gate" * 100_000)
    home = gate_files.private_home()
    together = Barrier(8)

    def launch(_: int) -> Path:
        together.wait()
        return gate_files.prepared(library, Path("/lib/libcuda.so.1"), home)

    with ThreadPoolExecutor(8) as launchers:
        (gate,) = set(launchers.map(launch, range(8)))
    assert gate.read_bytes() == library.read_bytes()
    assert sorted(os.listdir(gate.parent)) == ["libcuda.so", "libcuda.so.1", "libcuda_gate_real.so"]
    assert os.readlink(gate.parent / "libcuda_gate_real.so") == "/lib/libcuda.so.1"
    for folder in (home, gate.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_versions_lie_side_by_side_and_what_is_missing_is_made_again(place: Path) -> None:
    library = place / "gate.so"
    home = gate_files.private_home()
    library.write_bytes(b"one")
    first = gate_files.prepared(library, Path("/a"), home)
    assert gate_files.prepared(library, Path("/b"), home) != first
    first.unlink()
    assert gate_files.prepared(library, Path("/a"), home).read_bytes() == b"one"
    library.write_bytes(b"two")
    second = gate_files.prepared(library, Path("/a"), home)
    assert (first.read_bytes(), second.read_bytes()) == (b"one", b"two")


def test_a_folder_that_others_could_write_to_is_not_used(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(place / "tmp"))
    second = place / "tmp" / f"astrarium-gate-{os.getuid()}"
    first = gate_files.private_home()
    first.chmod(0o777)
    assert gate_files.private_home() == second
    second.chmod(0o770)
    with pytest.raises(AstrariumError, match="this user's alone"):
        gate_files.private_home()


def test_preloads_are_split_at_spaces_so_that_no_path_may_have_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(place / "tmp"))
    home = gate_files.private_home({"XDG_CACHE_HOME": str(place / "with space")})
    assert home.parent == place / "tmp"
    assert not (place / "with space").exists()


def test_an_installation_without_the_gate_says_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(astrarium, "__path__", [str(place)])
    with pytest.raises(AstrariumError, match="no gate"):
        gate_files.gate_library({})
    (place / gate_files.LIBRARY).touch()
    assert gate_files.gate_library({}) == place / gate_files.LIBRARY
    with pytest.raises(InputError, match=gate_files.LIBRARY_VARIABLE):
        gate_files.gate_library({gate_files.LIBRARY_VARIABLE: str(place / "none")})


def test_mps_is_started_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_control(place, monkeypatch)
    home = gate_files.private_home()
    together = Barrier(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    def launch(_: int) -> mps.Mps:
        together.wait()
        return mps.start(home, dict(os.environ))

    with ThreadPoolExecutor(4) as launchers:
        states = list(launchers.map(launch, range(4)))
    assert sorted(state.description for state in states) == ["MPS"] * 3 + ["MPS, started now"]
    assert {state.variables["CUDA_MPS_PIPE_DIRECTORY"] for state in states} == {str(home / "mps" / "pipe")}
    started = [line for line in calls.read_text().splitlines() if line.startswith("-d")]
    assert started == [f"-d {home / 'mps' / 'pipe'} all"]  # for every GPU


def test_a_daemon_that_is_there_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_control(place, monkeypatch)
    home = gate_files.private_home()
    (place / "machine").mkdir()
    (place / "machine" / "daemon").touch()
    machines = {"CUDA_MPS_PIPE_DIRECTORY": str(place / "machine")}
    assert mps.start(home) == mps.Mps(True, "MPS of this machine", machines)
    own = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(place / "own")}
    assert mps.start(home, own) == mps.Mps(False, f"no MPS: no daemon answers in {place / 'own'}", {})
    (place / "own").mkdir()
    (place / "own" / "daemon").touch()
    assert mps.start(home, own).running
    assert "-d" not in calls.read_text()


def test_a_daemon_that_does_not_start_is_no_reason_not_to_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_control(place, monkeypatch, starts=3)
    state = mps.start(gate_files.private_home())
    assert state == mps.Mps(False, f"no MPS: {mps.CONTROL} answered 3", {})
