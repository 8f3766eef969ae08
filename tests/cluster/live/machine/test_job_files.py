"""Whatever a job puts into its folder, who reads it is done soon, believes little, and goes nowhere else."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.cluster.live.backend import JobCommand, MachineStatus, RunKey
from astrarium.cluster.live.backends.local import LocalBackend
from astrarium.cluster.live.machine.as_owner import Errand, read_logs
from astrarium.cluster.live.machine.folders import JobClaims, read_claims, read_file
from astrarium.cluster.live.machine.keeping import errands
from astrarium.cluster.live.machine.keeping.claim_reader import ClaimReader
from astrarium.cluster.live.machine.keeping.claims import AT_ONCE, LAST_WORDS, MESSAGE, Heard
from astrarium.cluster.live.machine.keeping.errands import log_pieces
from astrarium.cluster.live.machine.keeping.job_files import (
    CHECKPOINT,
    DEEPEST,
    PROGRESS,
    READY,
    RESULT,
    SMALL,
    USED,
    JobFolder,
    _plain,
    clear_earlier,
)
from astrarium.cluster.live.machine.keeping.privileges import become
from astrarium.cluster.live.machine.keeping.records import OUTCOME, TOLD, write_whole
from astrarium.cluster.live.machine.outcome import Outcome, ending
from astrarium.cluster.live.machine.owners import NO_GROUP
from tests.support.cluster.backend import backend, order, seen
from tests.support.cluster.jobs import end_keepers

pytest_plugins = ("tests.support.cluster.fixtures",)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
READ = (PROGRESS, CHECKPOINT, READY, USED, RESULT)  # by the runner
SECRET = b"what only its owner may read"
HUGE = 3 << 30  # bytes, of a file that takes no room
ROUNDS = 40
LONGEST = 60  # seconds, far more than anything here takes
# numbers that are no accounts
USER = 61001
OTHER = 61002


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with a secret to which links of a job lead."""
    path = tmp_path / "outside"
    (path / CHECKPOINT).mkdir(parents=True)
    for each in (path / "secret", path / CHECKPOINT / "weights", path / PROGRESS):
        each.write_bytes(SECRET)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "app" / "job-0" / "run-1"
    path.mkdir(parents=True)
    return path


@pytest.fixture(autouse=True)
def _nothing_blocks() -> Iterator[None]:
    """End a test that waits for what never comes, such as the other end of a pipe."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it has not come back for {LONGEST} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Nothing in a folder is changed, removed or added."""

    def state() -> list[Any]:
        every = sorted([folder, *folder.rglob("*")])
        return [(str(path), found.st_mtime_ns, found.st_size, found.st_mode)
                for path in every for found in [path.lstat()]]  # fmt: skip

    before = state()
    yield
    assert state() == before


# what a job may put in the place of a file


def _sparse(path: Path, outside: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


def _socket(path: Path, outside: Path) -> None:
    here = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def _nested(path: Path, outside: Path, depth: int = DEEPEST + 40) -> None:
    """Put folders into folders."""
    path.mkdir()
    here = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a", dir_fd=here)
        inner = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def _folder_of_oddities(path: Path, outside: Path) -> None:
    path.mkdir()
    for name, place in STRANGE.items():
        if place is not _folder_of_oddities:
            place(path / name, outside)


STRANGE: dict[str, Callable[[Path, Path], None]] = {
    "link to a file": lambda path, outside: path.symlink_to(outside / "secret"),
    "link to a folder": lambda path, outside: path.symlink_to(outside),
    "link to a checkpoint": lambda path, outside: path.symlink_to(outside / CHECKPOINT),
    "link to nothing": lambda path, outside: path.symlink_to(outside / "nothing"),
    "link to itself": lambda path, outside: path.symlink_to(path.name),
    "link to a device": lambda path, outside: path.symlink_to("/dev/zero"),
    "pipe": lambda path, outside: os.mkfifo(path),
    "socket": _socket,
    "folder": lambda path, outside: path.mkdir(),
    "sparse": _sparse,
    "nested": _nested,
    "oddities": _folder_of_oddities,
    "closed": lambda path, outside: path.touch(mode=0),
    "empty": lambda path, outside: path.touch(),
}
WRITTEN = (
    b"[1]", b"{}", b"{", b"\xff\xfe\x00", b"null", b'"' + b"x" * SMALL, b"[" * SMALL, b"9" * SMALL,
    b'{"progress": NaN, "kept": Infinity}', b'{"progress": -1e999, "kept": "1"}',
    b'{"progress": 1' + b"0" * 400 + b', "kept": -1' + b"0" * 400 + b"}",
    b'{"progress": ' + b"[" * 960 + b"]" * 960 + b', "trouble": ' + b'{"a":' * 400 + b"1" + b"}" * 400 + b"}",
    b'{"trouble": "\\ud800 \\u001b[2J\\u0000", "progress": true, "kept": {}}',
    b'{"trouble": ["' + "ä".encode() * 1900 + b'"], "run": 18446744073709551616}',
    b'{"run": -1, "progress": 0.5, "kept": 2, "trouble": "' + "ä".encode() * 1900 + b'"}',
)  # fmt: skip


def place_something(path: Path, outside: Path, rng: random.Random) -> None:
    """Put something in the place of a file: a strange thing, odd JSON, bytes, or nothing."""
    kind = rng.randrange(4)
    if kind == 0:
        rng.choice(list(STRANGE.values()))(path, outside)
    elif kind == 1:
        path.write_bytes(rng.choice(WRITTEN))
    elif kind == 2:
        path.write_bytes(rng.randbytes(rng.choice((0, 1, 100, SMALL, SMALL + 1, 1 << 16))))


def check_claims(folder: Path) -> dict[str, Any]:
    """Read the claims as a runner does, hand them to a keeper, and return what an arbiter reads of them."""
    with JobFolder.open(folder) as opened:
        told = ClaimReader(opened).look(last=True)
    message = json.dumps({**told, "codes": [1], "first": 0, "words": "the end"}).encode()
    assert len(message) <= MESSAGE
    heard = heard_of(message)
    assert heard.codes == [1]
    check_heard(heard)
    assert SECRET.decode() not in message.decode()
    return heard.claims


def check_heard(heard: Heard) -> None:
    claims = heard.claims
    assert 0.0 <= claims["progress"] <= 1.0
    assert 0.0 <= claims["kept"] <= 1.0
    assert len(claims["trouble"]) <= LAST_WORDS
    assert claims["trouble"].isprintable()
    assert 0 <= claims["used"] < 1 << 63
    assert heard.words.isprintable()
    assert 0 <= heard.first < max(1, len(heard.codes or []))
    check_readable(heard)


def check_readable(heard: Heard) -> None:
    """An arbiter reads all of what a keeper writes: else a job could have itself be taken for lost."""
    claims = heard.claims
    stamp = tuple(claims["stamp"]) if claims["stamp"] else None
    told = JobClaims(claims["progress"], claims["kept"], stamp, claims["trouble"])
    left = {"codes": heard.codes or [], "first": heard.first, "words": heard.words, "asked": False, "oom": 0}
    with tempfile.TemporaryDirectory() as folder:
        write_whole(Path(folder, TOLD), claims)
        assert read_claims(Path(folder)) == told
        write_whole(Path(folder, OUTCOME), {**left, "told": claims})
        outcome = read_file(Path(folder, OUTCOME), Outcome)
        assert outcome is not None
        assert ending(outcome)[0] in ("finished", "failed", "stopped", "not found")
        assert read_claims(Path(folder)) == told


def heard_of(*messages: bytes) -> Heard:
    """Return what a keeper has heard when a runner has said this."""
    heard = Heard()
    (ours, its) = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        ours.setblocking(False)
        for each in messages:
            its.send(each)
        heard.hear(ours)
    return heard


# what a runner reads, and what it tells its keeper


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("kind", STRANGE)
def test_strange_things_in_the_place_of_a_file_claim_nothing(
    run: Path, outside: Path, name: str, kind: str
) -> None:
    STRANGE[kind](run / name, outside)
    with untouched(outside):
        claims = check_claims(run)
    assert (claims["progress"], claims["kept"], claims["used"]) == (0.0, 0.0, 0)
    assert claims["ready"] == (name == READY)
    assert (claims["stamp"] is not None) == (name == CHECKPOINT)


@pytest.mark.parametrize("content", WRITTEN)
def test_odd_json_claims_nothing_beyond_its_range(run: Path, content: bytes) -> None:
    for name in READ:
        (run / name).write_bytes(content)
    check_claims(run)


def fuzz(tmp_path: Path, outside: Path, seed: int) -> None:
    """Put something in the place of all that is read, and read it."""
    rng = random.Random(seed)
    job = tmp_path / f"app-{seed}" / "job-0"
    for run in ("run-1", "run-2"):
        (job / run / "part-0").mkdir(parents=True)
        for name in (*READ, f".{CHECKPOINT}.1", "part-0/log-0.txt", "part-0/log-1.txt"):
            place_something(job / run / name, outside, rng)
    place_something(job / "run-3", outside, rng)
    with untouched(outside):
        check_claims(job / "run-2")
        check_logs(job.parent)
        with JobFolder.open(job.parent, "job-0") as opened:
            clear_earlier(opened, 4, keep=2)
    shutil.rmtree(job.parent)


def check_logs(app: Path, most: int = 1 << 22) -> None:
    logs = {f"job-0/run-{run}/part-0/log-{rank}.txt": 0 for run in (1, 2, 3) for rank in (0, 1)}
    sizes = dict.fromkeys(logs, 0)
    for path, _, body in log_pieces(app, logs, most):
        sizes[path] += len(body)
        assert SECRET not in body
    assert max(sizes.values()) <= most


def test_whatever_lies_there_is_read(tmp_path: Path, outside: Path) -> None:
    for seed in range(ROUNDS):
        fuzz(tmp_path, outside, seed)


@pytest.mark.thorough
def test_whatever_lies_there_is_read_many_times(tmp_path: Path, outside: Path) -> None:
    for seed in range(ROUNDS, 30 * ROUNDS):
        signal.alarm(LONGEST)
        fuzz(tmp_path, outside, seed)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.integers(10**300, 10**320)
    | st.text(st.characters(), max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
CLAIMS = st.dictionaries(
    st.sampled_from(
        ["progress", "kept", "trouble", "used", "run", "ready", "stamp", "codes", "first", "words"]
    ),
    JSON | st.lists(st.integers(-300, 1 << 64), max_size=3),
)


@settings(max_examples=80, deadline=None)
@given(CLAIMS | JSON)
def test_a_keeper_believes_no_message_to_be_of_the_right_kind(message: Any) -> None:
    check_heard(heard_of(json.dumps(message).encode()[: MESSAGE * 2]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=5))
def test_bytes_that_are_no_message_change_nothing(messages: list[bytes]) -> None:
    said = json.dumps({"progress": 0.5, "codes": [3]}).encode()
    heard = heard_of(said, *(b"\xff" + each for each in messages))
    check_heard(heard)
    assert (heard.claims["progress"], heard.codes) == (0.5, [3])


@settings(max_examples=60, deadline=None)
@given(CLAIMS)
def test_whatever_json_a_job_writes_is_told_in_range(content: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in (PROGRESS, USED):
            Path(folder, name).write_text(json.dumps(content))
        check_claims(Path(folder))


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300) | JSON.map(lambda found: json.dumps(found).encode()))
def test_a_torn_record_of_a_keeper_is_none(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in (TOLD, OUTCOME):
            Path(folder, name).write_bytes(content)
        assert isinstance(read_claims(Path(folder)), JobClaims)
        ending(read_file(Path(folder, OUTCOME), Outcome))


def test_a_keeper_that_is_flooded_with_messages_looks_up_between_them() -> None:
    heard = Heard()
    (ours, its) = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        ours.setblocking(False)
        for step in range(2 * AT_ONCE):
            its.send(json.dumps({"used": step}).encode())
        heard.hear(ours)
        assert heard.claims["used"] == AT_ONCE - 1


def test_a_checkpoint_may_change_while_it_is_looked_at(run: Path) -> None:
    """A folder that is written beside the old one and put in its place, as jobs do."""
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            (run / "draft" / "inner").mkdir(parents=True)
            (run / "draft" / "inner" / "weights").write_bytes(b"x" * 100)
            with contextlib.suppress(FileNotFoundError):
                (run / CHECKPOINT).rename(run / "old")
            (run / "draft").rename(run / CHECKPOINT)
            shutil.rmtree(run / "old", ignore_errors=True)

    writer = threading.Thread(target=write)
    writer.start()
    with JobFolder.open(run) as folder:
        stamps = {folder.stamp() for _ in range(2000)}
    over.set()
    writer.join()
    assert len(stamps) > 2


def test_a_stamp_goes_as_deep_as_is_said(run: Path) -> None:
    _nested(run / CHECKPOINT, run, DEEPEST + 20)
    with JobFolder.open(run) as folder:
        found = folder.stamp()
    levels = [run.joinpath(CHECKPOINT, *["a"] * depth) for depth in range(DEEPEST + 2)]
    assert found is not None
    assert found[1] == sum(level.stat().st_size for level in levels)


def test_no_more_is_read_than_may_be(run: Path, outside: Path) -> None:
    """Of three gigabytes in each file, nothing but the first bytes come into memory."""
    (run / "part-0").mkdir()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in (*READ, "part-0/log-0.txt"):
        _sparse(run / name, outside)
    check_claims(run)
    check_logs(run.parents[1])
    with JobFolder.open(run) as folder:
        assert folder.read(PROGRESS) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_descriptors_are_closed_whatever_is_found(run: Path, outside: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for kind, place in enumerate(STRANGE.values()):
        place(run / str(kind), outside)
        for names in (("job-0", "run-1", str(kind)), ("job-0", str(kind), "run-1"), ("..",)):
            with contextlib.suppress(OSError):
                JobFolder.open(run.parents[1], *names).close()
        with JobFolder.open(run) as folder:
            folder.read(str(kind))
    assert count() == before


def test_folders_that_are_nested_deeper_than_any_stack_are_left(run: Path) -> None:
    """They are their owner's, and in nobody's way: the runner goes on."""
    _nested(run / CHECKPOINT, run, 1100)
    try:
        with JobFolder.open(run) as folder:
            assert folder.stamp() is not None
            folder.remove(CHECKPOINT)
            clear_earlier(folder, 9, 0)
    finally:
        subprocess.run(["rm", "-rf", str(run)], check=True)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "../a", "a\0b", "a/", "./a"])
def test_names_that_lead_elsewhere_are_refused(run: Path, name: str) -> None:
    with pytest.raises(PermissionError, match="no plain name"):
        _plain(name)
    with JobFolder.open(run) as folder:
        deeds: tuple[Callable[[str], Any], ...] = (
            folder.inner,
            folder.file,
            lambda to: folder.write(to, b""),
        )
        for deed in deeds:
            with pytest.raises(PermissionError):
                deed(name)
        assert folder.read(name) is None
        assert folder.seen(name) is None


@pytest.mark.parametrize("name", ["a", "...", ".a", "a b", "-rf", "\n", "\udc80", "*"])
def test_plain_names_are_taken_as_they_are(name: str) -> None:
    assert _plain(name) == name


@pytest.mark.parametrize("kind", STRANGE)
def test_a_file_is_written_in_the_place_of_whatever_is_there(run: Path, outside: Path, kind: str) -> None:
    STRANGE[kind](run / "file", outside)
    STRANGE[kind](run / f".file.{os.getpid()}", outside)
    folder_there = stat.S_ISDIR((run / "file").lstat().st_mode)
    with untouched(outside), JobFolder.open(run) as folder:
        if folder_there:
            with pytest.raises(IsADirectoryError):
                folder.write("file", b"ours")
        else:
            folder.write("file", b"ours")
            assert folder.read("file") == b"ours"


# what errands do


def errand(verb: str, app: Path, about: Any, *words: str, given: bytes | None = None) -> tuple[bool, bytes]:
    with Errand(verb, app, about, *words, stdin=given is not None) as one:
        if given is not None:
            with contextlib.suppress(BrokenPipeError):
                one.write(given)
        found = b"" if given is not None else b"".join(iter(lambda: one.read(1 << 20), b""))
        return one.ended_well(), found


@pytest.mark.parametrize(
    "kind", ["link to a file", "link to a checkpoint", "link to a device", "pipe", "socket", "nested"]
)
def test_whatever_a_checkpoint_is_it_is_packed_as_that(run: Path, outside: Path, kind: str) -> None:
    STRANGE[kind](run / CHECKPOINT, outside)
    (run / RESULT).symlink_to(outside / "secret")
    with untouched(outside):
        _, found = errand("pack", run.parents[1], ["job-0", "run-1"])
    assert json.loads(found.partition(b"\n")[0])
    assert SECRET not in found


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


# whole runs


def test_a_log_that_is_something_else_keeps_no_job_from_ending(home: Path) -> None:
    """A run makes a pipe of the log of the next one: it would wait for room there for ever."""
    code = 'next="$ASTRARIUM_FOLDER/../run-2/part-0"; mkdir -p "$next"; mkfifo "$next/log-0.txt"; echo words'
    one = backend(home)
    for run in (1, 2):
        one.start(order(run, JobCommand(("sh", "-c", code if run == 1 else "echo words"))))
        assert seen(one, run).ended == "finished"
    logs = {f"job-0/run-{run}/part-0/log-0.txt": 0 for run in (1, 2)}
    assert [part.body for part in read_logs(home, "0-app", logs)] == [b"words\n"]


def test_a_job_that_claims_impossible_things_ends_as_any_other(home: Path) -> None:
    code = r"""cd "$ASTRARIUM_FOLDER"; printf '{"progress": 1%0400d, "trouble": "\ud800"}' 0 > progress.json
        sleep 0.3; exit 3"""
    one = backend(home)
    one.start(order(1, JobCommand(("sh", "-c", code))))
    ended = seen(one, 1)
    assert (ended.ended, ended.error) == ("failed", "exit code 3")


DAEMON = """cd "$ASTRARIUM_FOLDER"; umask 022
for number in 1 2; do setsid sh -c 'setsid sleep 300 & echo $! > left-'$number'; wait' & done
(trap "" TERM HUP; setsid -f sh -c 'echo $$ > left-3; while true; do sleep 300; done')
while ! [ -s left-1 -a -s left-2 -a -s left-3 ]; do sleep 0.02; done
"""


@pytest.mark.parametrize(
    ("owner", "end"),
    [("", "exit 0"), ("", "kill -9 $PPID; sleep 300")]
    + [pytest.param(str(USER), end, marks=needs_root) for end in ("exit 0", "exit 3", "sleep 300")]
    + [pytest.param(str(USER), "kill -9 $PPID; sleep 300", marks=needs_root)],
)
def test_what_has_left_the_session_of_a_job_does_not_outlive_it(
    open_path: Path, owner: str, end: str
) -> None:
    """Daemons, whether the job ends by itself, fails, is stopped, or ends its own runner."""
    home = open_path / "here.state"
    one = LocalBackend(home, {"left": MachineStatus(2)}, grace=0.5)
    task = JobCommand(("/bin/sh", "-c", DAEMON + end), on_stop="restart", owner=owner, directory="/")
    try:
        one.start(order(1, task))
        if end == "sleep 300":
            seen(one, 1, lambda run: len(list(home.glob("apps/*/job-0/run-1/left-[123]"))) == 3)
            one.stop(RunKey(0, 0, 1))
        seen(one, 1)
        numbers = [path.read_text().strip() for path in home.glob("apps/*/job-0/run-1/left-*")]
        assert len(numbers) == 3 or end == "sleep 300"
        assert not [number for number in numbers if Path("/proc", number).exists()]
    finally:
        end_keepers(home)


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """Folders of tests are for their user alone; somebody else must be able to pass."""
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o711)
    return tmp_path


# becoming somebody else


def in_child(do: Callable[[], Any]) -> Any:
    """Return what a function returns in a process of its own, or the name of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LONGEST)
        try:
            told = do()
        except BaseException as error:
            told = type(error).__name__
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        told = json.loads(file.read())
    os.waitpid(child, 0)
    return told


def refused(deed: Callable[..., Any], *words: Any) -> bool:
    try:
        deed(*words)
    except PermissionError:
        return True
    return False


@needs_root
def test_who_has_become_another_user_is_nothing_else_and_cannot_go_back(tmp_path: Path) -> None:
    (tmp_path / "closed").touch(mode=0o600)

    def told() -> list[Any]:
        become({"user": USER, "group": NO_GROUP, "extra_groups": [OTHER]})
        ids = [list(os.getresuid()), list(os.getresgid()), os.getgroups()]
        status = Path("/proc/self/status").read_text().splitlines()
        powers = [line.split()[1] for line in status if line.startswith(("CapPrm", "CapEff"))]
        back = [refused(os.setuid, 0), refused(os.seteuid, 0), refused(os.setresuid, 0, 0, 0),
                refused(os.setgid, 0), refused(os.setresgid, 0, 0, 0), refused(os.setgroups, [0]),
                refused(os.setuid, OTHER), refused(os.kill, os.getppid(), 0),
                refused((tmp_path / "closed").read_bytes)]  # fmt: skip
        return [ids, {int(each, 16) for each in powers} == {0}, all(back)]

    assert in_child(told) == [[[USER] * 3, [NO_GROUP] * 3, [OTHER]], True, True]


@needs_root
@pytest.mark.parametrize(
    ("account", "error"),
    [
        ({"user": 0, "group": 0, "extra_groups": []}, "PermissionError"),
        ({"user": "0", "group": NO_GROUP, "extra_groups": []}, "PermissionError"),
        ({"user": -1, "group": NO_GROUP, "extra_groups": []}, "PermissionError"),
        ({"user": USER, "group": -1, "extra_groups": []}, "PermissionError"),
        ({"user": USER, "group": NO_GROUP}, "KeyError"),
        ({"user": USER}, "KeyError"),
        ({"user": 1 << 40, "group": NO_GROUP, "extra_groups": []}, "OverflowError"),
    ],
)
def test_half_of_an_account_is_nobodys(account: dict[str, Any], error: str) -> None:
    assert in_child(lambda: become(account)) == error


def test_an_empty_account_is_our_own() -> None:
    before = os.getresuid(), os.getresgid(), os.getgroups()
    become({})
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before
