"""Whatever a job puts into its folder, who reads it is done soon, believes little, and goes nowhere else."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.cluster.live.backend import JobCommand, MachineStatus, RunKey
from astrarium.cluster.live.backends.local import LocalBackend
from astrarium.cluster.live.machine.as_owner import read_logs
from astrarium.cluster.live.machine.folders import JobClaims, read_claims, read_file
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
from astrarium.cluster.live.machine.keeping.records import OUTCOME, TOLD, write_whole
from astrarium.cluster.live.machine.outcome import Outcome, ending
from tests.support.cluster.backend import backend, order, seen
from tests.support.cluster.jobs import end_keepers
from tests.support.cluster.strange_files import (
    SECRET,
    STRANGE,
    nested,
    sparse,
    untouched,
)
from tests.support.cluster.users import MALLORY, needs_root

pytestmark = pytest.mark.usefixtures("nothing_blocks")
pytest_plugins = ("tests.support.cluster.fixtures", "tests.support.cluster.job_folders")

READ = (PROGRESS, CHECKPOINT, READY, USED, RESULT)  # by the runner
ROUNDS = 40


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
        claims = ClaimReader(opened).look(last=True)
    message = json.dumps({**claims, "codes": [1], "first": 0, "words": "the end"}).encode()
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
    expected = JobClaims(claims["progress"], claims["kept"], stamp, claims["trouble"])
    left = {"codes": heard.codes or [], "first": heard.first, "words": heard.words, "asked": False, "oom": 0}
    with tempfile.TemporaryDirectory() as folder:
        write_whole(Path(folder, TOLD), claims)
        assert read_claims(Path(folder)) == expected
        write_whole(Path(folder, OUTCOME), {**left, "told": claims})
        outcome = read_file(Path(folder, OUTCOME), Outcome)
        assert outcome is not None
        assert ending(outcome)[0] in ("finished", "failed", "stopped", "not found")
        assert read_claims(Path(folder)) == expected


def heard_of(*messages: bytes) -> Heard:
    """Return what a keeper has heard when a runner has said this."""
    heard = Heard()
    (ours, its) = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        ours.setblocking(False)
        for message in messages:
            its.send(message)
        heard.hear(ours)
    return heard


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
    for seed in range(ROUNDS, 15 * ROUNDS):
        signal.alarm(60)  # seconds, far more than it takes
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
    valid = json.dumps({"progress": 0.5, "codes": [3]}).encode()
    heard = heard_of(valid, *(b"\xff" + message for message in messages))
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
@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
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
        while len(stamps) <= 2:  # where the writer gets little of the processor
            stamps.add(folder.stamp())
    over.set()
    writer.join()


def test_a_stamp_goes_as_deep_as_is_said(run: Path) -> None:
    nested(run / CHECKPOINT, run, DEEPEST + 20)
    with JobFolder.open(run) as folder:
        stamp = folder.stamp()
    levels = [run.joinpath(CHECKPOINT, *["a"] * depth) for depth in range(DEEPEST + 2)]
    assert stamp is not None
    assert stamp[1] == sum(level.stat().st_size for level in levels)


def test_no_more_is_read_than_may_be(run: Path, outside: Path) -> None:
    """Of three gigabytes in each file, nothing but the first bytes come into memory."""
    (run / "part-0").mkdir()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in (*READ, "part-0/log-0.txt"):
        sparse(run / name, outside)
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
    nested(run / CHECKPOINT, run, 1100)
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
    + [pytest.param(str(MALLORY), end, marks=needs_root) for end in ("exit 0", "exit 3", "sleep 300")]
    + [pytest.param(str(MALLORY), "kill -9 $PPID; sleep 300", marks=needs_root)],
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
