"""Errands go where a job could write: what they pack, unpack, clear and read is the job's alone."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astrarium.cluster.live.machine.as_owner import Errand
from astrarium.cluster.live.machine.keeping import errands
from astrarium.cluster.live.machine.keeping.errands import log_pieces
from astrarium.cluster.live.machine.keeping.job_files import (
    CHECKPOINT,
    RESULT,
)
from tests.support.cluster.strange_files import (
    SECRET,
    STRANGE,
    untouched,
)

pytestmark = pytest.mark.usefixtures("nothing_blocks")
pytest_plugins = ("tests.support.cluster.job_folders",)


def errand(verb: str, app: Path, about: Any, *words: str, given: bytes | None = None) -> tuple[bool, bytes]:
    with Errand(verb, app, about, *words, stdin=given is not None) as one:
        if given is not None:
            with contextlib.suppress(BrokenPipeError):
                one.write(given)
        output = b"" if given is not None else b"".join(iter(lambda: one.read(1 << 20), b""))
        return one.ended_well(), output


@pytest.mark.parametrize(
    "kind", ["link to a file", "link to a checkpoint", "link to a device", "pipe", "socket", "nested"]
)
def test_whatever_a_checkpoint_is_it_is_packed_as_that(run: Path, outside: Path, kind: str) -> None:
    STRANGE[kind](run / CHECKPOINT, outside)
    (run / RESULT).symlink_to(outside / "secret")
    with untouched(outside):
        _, packed = errand("pack", run.parents[1], ["job-0", "run-1"])
    assert json.loads(packed.partition(b"\n")[0])
    assert SECRET not in packed


def archive(tmp_path: Path, outside: Path) -> bytes:
    """Return a checkpoint that another machine has sent, with a link that leads out of it."""
    (tmp_path / "sent" / CHECKPOINT).mkdir(parents=True)
    (tmp_path / "sent" / CHECKPOINT / "words").write_text("mine")
    (tmp_path / "sent" / CHECKPOINT / "link").symlink_to(outside)
    tar = ["tar", "-c", "-C", str(tmp_path / "sent"), CHECKPOINT]
    return subprocess.run(tar, check=True, capture_output=True).stdout


@pytest.mark.parametrize("kind", ["link to a folder", "link to itself", "pipe", "oddities", "sparse"])
def test_a_checkpoint_that_is_brought_takes_the_place_of_whatever_is_there(
    tmp_path: Path, run: Path, outside: Path, kind: str
) -> None:
    STRANGE[kind](run / CHECKPOINT, outside)
    with untouched(outside):
        done, _ = errand("unpack", run.parents[1], ["job-0", "run-1"], given=archive(tmp_path, outside))
    assert done
    assert (run / CHECKPOINT / "words").read_text() == "mine"
    assert (run / CHECKPOINT / "link").is_symlink()
    assert not list(run.glob(".brought.*"))


def test_the_first_pythons_with_tar_archives_unpack_too(
    tmp_path: Path, run: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("tarfile.tar_filter")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(archive(tmp_path, outside))))
    monkeypatch.chdir(tmp_path)
    assert errands._unpack(run.parents[1], ["job-0", "run-1"]) == 0
    assert (run / CHECKPOINT / "words").read_text() == "mine"


def test_an_errand_tells_why_it_failed(run: Path) -> None:
    with Errand("unpack", run.parents[1], ["job-0", "run-1"], stdin=True) as one:
        one.write(b"no archive")
        assert not one.ended_well()
        assert one.last_words().startswith("tarfile.ReadError: ")


@pytest.mark.parametrize("given", [b"", b"no archive", SECRET * 1000])
def test_what_is_no_archive_changes_nothing(run: Path, given: bytes) -> None:
    (run / CHECKPOINT).write_text("mine")
    assert not errand("unpack", run.parents[1], ["job-0", "run-1"], given=given)[0]
    assert (run / CHECKPOINT).read_text() == "mine"
    assert [path.name for path in run.iterdir()] == [CHECKPOINT]


@pytest.mark.parametrize("kind", ["link to a folder", "link to nothing", "pipe", "oddities"])
def test_folders_of_jobs_that_are_something_else_are_not_gone_into(
    tmp_path: Path, outside: Path, kind: str
) -> None:
    app = tmp_path / "app"
    app.mkdir()
    STRANGE[kind](app / "job-0", outside)
    with untouched(outside):
        for verb, words in (("pack", ()), ("unpack", ()), ("clear", ("9", "0"))):
            names = ["job-0"] if verb == "clear" else ["job-0", "run-1"]
            errand(verb, app, names, *words, given=b"" if verb == "unpack" else None)
        assert list(log_pieces(app, {"job-0/secret": 0, "job-0/run-1/part-0/log-0.txt": 0}, 1 << 20)) == []


def test_checkpoints_are_cleared_and_nothing_that_they_link_to(tmp_path: Path, outside: Path) -> None:
    job = tmp_path / "app" / "job-0"
    for number, place in enumerate(STRANGE.values(), start=1):
        (job / f"run-{number}").mkdir(parents=True)
        place(job / f"run-{number}" / CHECKPOINT, outside)
        place(job / f"run-{number}" / f".{CHECKPOINT}.7", outside)
    (job / "run-90").symlink_to(outside)
    os.mkfifo(job / "run-91")
    (job / "run-x").mkdir()
    with untouched(outside):
        assert errand("clear", job.parent, ["job-0"], "99", "1")[0]
    left = {path.parent.name for path in job.glob(f"run-*/{CHECKPOINT}")}
    assert left == {"run-1", "run-90"}
    assert not list(job.glob(f"run-1/.{CHECKPOINT}.*"))
