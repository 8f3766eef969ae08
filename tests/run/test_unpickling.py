"""Files that are unpickled: one's own, and of others only what runs no code."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astrarium import cluster_job
from astrarium.core.errors import InputError
from astrarium.run.unpickling import UntrustedFile, load_file, make_own, read_own
from astrarium.tuning.live import checkpoints
from astrarium.tuning.live.backend import Checkpoint

torch = pytest.importorskip("torch")
STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


class Malicious:
    """Unpickling one makes a folder."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.proof),)


def pickled(path: Path, content: Any) -> Path:
    path.write_bytes(pickle.dumps(content))
    return path


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def of_stranger(path: Path) -> Path:
    os.chown(path, STRANGER, STRANGER)
    return path


def loaded(path: Path) -> Any:
    with path.open("rb") as file:
        return load_file(file)


@pytest.mark.parametrize("write", [pickled, saved])
def test_own_files_hold_any_object(tmp_path: Path, write: Callable[[Path, Any], Path]) -> None:
    assert loaded(write(tmp_path / "file", {"path": Path("x"), "done": 3})) == {"path": Path("x"), "done": 3}


@as_root
@pytest.mark.parametrize("write", [pickled, saved])
def test_code_of_others_is_not_run(tmp_path: Path, write: Callable[[Path, Any], Path]) -> None:
    path = of_stranger(write(tmp_path / "file", {"state": Malicious(tmp_path / "ran")}))
    with pytest.raises(UntrustedFile) as refused:
        loaded(path)
    assert not (tmp_path / "ran").exists()
    message = str(refused.value)
    assert message.startswith("checkpoint: expected a file that only you can have written")
    assert f"it belongs to user {STRANGER}, and you are root (user 0); copy it if you trust it" in message
    assert str(path)[:20] in message


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_others_may_write_is_not_run(tmp_path: Path, mode: int) -> None:
    path = pickled(tmp_path / "file", Malicious(tmp_path / "ran"))
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, 0, STRANGER)
    elif mode & 0o020:
        pytest.skip("the group may be this user's alone")
    with pytest.raises(UntrustedFile, match=rf"others may write it \(mode {mode:o}"):
        loaded(path)
    assert not (tmp_path / "ran").exists()
    make_own(path)
    loaded(path)
    assert (tmp_path / "ran").exists()


def test_a_group_that_is_the_users_alone_is_nobody_else(tmp_path: Path) -> None:
    """As with a umask of 002, where each user has a group of the same name."""
    path = pickled(tmp_path / "file", Path("x"))
    path.chmod(0o664)
    if path.group() != path.owner():
        pytest.skip("this user has no group of the same name")
    assert loaded(path) == Path("x")


@as_root
def test_tensors_of_others_are_loaded(tmp_path: Path) -> None:
    content = {"weights": torch.arange(3), "done": 3, "names": ["a"], "pair": (1.5, None)}
    tensors = loaded(of_stranger(saved(tmp_path / "file", content)))
    assert torch.equal(tensors.pop("weights"), torch.arange(3))
    assert tensors == {"done": 3, "names": ["a"], "pair": (1.5, None)}


def test_roots_files_are_as_good_as_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pickled(tmp_path / "file", Path("x"))
    if path.stat().st_uid != 0:
        pytest.skip("only root can make root's files")
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert loaded(path) == Path("x")


@as_root
def test_the_file_that_is_checked_is_the_one_that_is_read(tmp_path: Path) -> None:
    """A name that leads elsewhere after it was opened makes no difference."""
    path = of_stranger(pickled(tmp_path / "file", Malicious(tmp_path / "ran")))
    with path.open("rb") as file:
        pickled(tmp_path / "other", "harmless").replace(path)
        with pytest.raises(UntrustedFile):
            load_file(file)
    assert not (tmp_path / "ran").exists()


@as_root
def test_a_job_does_not_resume_from_a_pickle_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_stranger(pickled(tmp_path / "file", {"done": 1, "state": Malicious(tmp_path / "ran")}))
    monkeypatch.setenv("ASTRARIUM_FOLDER", str(tmp_path / "job"))
    monkeypatch.setenv("ASTRARIUM_RESUME", str(path))
    with pytest.raises(UntrustedFile, match=f"belongs to user {STRANGER}"):
        cluster_job.Session()
    assert not (tmp_path / "ran").exists()
    os.chown(path, 0, 0)
    pickled(path, {"done": 1, "state": Path("x")})
    assert cluster_job.Session().restore() == Path("x")


def test_a_job_needs_no_torch_for_a_pickle(tmp_path: Path) -> None:
    pickled(tmp_path / "checkpoint", {"done": 1, "state": 7})
    look = "print(cluster_job.Session().restore(), 'torch' in sys.modules)"
    code = f"import sys; from astrarium import cluster_job; {look}"
    environment = {**os.environ, "ASTRARIUM_FOLDER": str(tmp_path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert shown.stdout.split() == ["7", "False"], shown.stderr


@as_root
def test_a_candidate_goes_on_from_tensors_of_others_and_runs_no_code_of_theirs(tmp_path: Path) -> None:
    import numpy  # its generator's state goes with the checkpoint

    here = Checkpoint(1, 5)
    checkpoints.write(tmp_path, here, {"weights": torch.ones(2)})
    drawn = numpy.random.random()
    of_stranger(checkpoints.path(tmp_path, here))
    assert torch.equal(checkpoints.read(tmp_path, here)["weights"], torch.ones(2))
    assert numpy.random.random() == drawn
    checkpoints.write(tmp_path, here, Malicious(tmp_path / "ran"))
    of_stranger(checkpoints.path(tmp_path, here))
    with pytest.raises(InputError, match="loading it may run code"):
        checkpoints.read(tmp_path, here)
    assert not (tmp_path / "ran").exists()


@as_root
def test_what_trainings_are_built_from_must_be_ones_own(tmp_path: Path) -> None:
    path = pickled(tmp_path / "build", "x")
    assert pickle.loads(read_own(path, "build")) == "x"
    with pytest.raises(UntrustedFile, match=r"^build: expected a file that only you"):
        read_own(of_stranger(path), "build")
