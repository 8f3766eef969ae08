"""A user of a shared cluster who attacks it: nobody becomes root, reads, stops or ends what is another's.

Each test is an attack that has once succeeded. Users are bare numbers; root is needed, or a user namespace.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import astrarium.cluster.live
from astrarium.cluster.live.backend import JobCommand, Order, RunKey, RunPart
from astrarium.cluster.live.backends.hosts.machine_checkpoints import all_held
from astrarium.cluster.live.machine.as_owner import log_names, read_logs
from astrarium.cluster.live.machine.keeping.job_files import JobFolder
from astrarium.cluster.live.machine.owners import account, check_above
from astrarium.cluster.live.service.unix_socket import unix_client
from astrarium.core.errors import InputError
from tests.support.cluster.attacks import HEAD, evil, finished, machines
from tests.support.cluster.backend import order, seen
from tests.support.cluster.hosts import on as on_hosts
from tests.support.cluster.hosts import two_hosts, waited
from tests.support.cluster.jobs import arbiter, end_keepers
from tests.support.cluster.users import MALLORY, VICTIM, as_user, needs_root

pytestmark = needs_root
pytest_plugins = ("tests.support.cluster.fixtures",)

SECRET = "nobody but root reads this"


@pytest.fixture
def home(open_path: Path) -> Iterator[Path]:
    yield open_path / "here.state"
    end_keepers(open_path / "here.state")


@pytest.fixture
def secret(open_path: Path) -> Path:
    path = open_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def test_orders_lie_where_only_root_can_write(home: Path, open_path: Path) -> None:
    """A part's folder that Mallory has made first is not the one that is looked at."""
    finished(home, "pass")
    error = as_user(MALLORY, lambda: os.mkdir(home / "orders/0-app/job-0/run-2"))
    assert "Permission denied" in error
    mine = home / "apps/0-app/job-0/run-2/part-1"
    forged = {"command": ["sh", "-c", f"id -u > {open_path}/root"], "account": {}, "processes": [{}]}

    def prepare() -> None:
        mine.mkdir(parents=True)
        for name in ("order.json", "keeper.txt", "alive", "outcome.json", "told.json"):
            (mine / name).write_text(json.dumps(forged))

    assert as_user(MALLORY, prepare) is None
    one = machines(home)
    parts = (RunPart("left", (0, 1)), RunPart("right", (0, 1)))
    one.start(order(2, evil("print(os.getuid(), os.getgid(), os.getgroups())"), (0, 1, 2, 3), parts))
    assert seen(one, 2).ended == "finished"
    assert not (open_path / "root").exists()
    for rank in (0, 1):
        log = home / f"apps/0-app/job-0/run-2/part-{rank}/log-{rank}.txt"
        assert log.read_text() == f"{MALLORY} 65534 []\n"


def test_a_number_is_an_account_unless_it_is_root_or_has_a_name() -> None:
    assert account(JobCommand(("true",), owner=str(MALLORY)))["user"] == MALLORY
    for owner in ("0", "00", "-1", "1", str(1 << 32), "٣"):
        assert "unknown" in account(JobCommand(("true",), owner=owner)), owner


def test_the_folder_of_an_app_is_not_given_to_another(home: Path) -> None:
    finished(home, "pass")
    one = machines(home)
    other = JobCommand(("true",), owner=str(VICTIM), directory="/")
    with pytest.raises(PermissionError, match=f"belongs to user {MALLORY}, and the app to {VICTIM}"):
        one.start(order(2, other))


def test_the_state_folder_is_not_where_others_can_replace_it(open_path: Path) -> None:
    (open_path / "mallory").mkdir()
    os.chown(open_path / "mallory", MALLORY, -1)
    with pytest.raises(InputError, match=f"live.state: expected a folder below .*user {MALLORY} can write"):
        check_above("live.state", open_path / "mallory" / "here.state")
    check_above("live.state", open_path / "here.state")
    (open_path / "open").mkdir()
    (open_path / "open").chmod(0o777)
    with pytest.raises(InputError, match="its mode 777 lets others write"):
        check_above("live.state", open_path / "open" / "here.state")


def read(home: Path) -> bytes:
    logs = dict.fromkeys(log_names(home, "0-app"), 0)
    return b"".join(piece.body for piece in read_logs(home, "0-app", logs))


def test_a_log_that_is_a_link_leads_nowhere(home: Path, secret: Path) -> None:
    code = f"""
print('words', flush=True)
for part in ('part-0', 'part-9'):
    (at / part).mkdir(exist_ok=True)
    (at / part / 'log-0.txt').unlink(missing_ok=True)
    (at / part / 'log-0.txt').symlink_to({str(secret)!r})
"""
    finished(home, code)
    assert log_names(home, "0-app") == ["job-0/run-1/part-0/log-0.txt"]
    assert read(home) == b""


@pytest.mark.parametrize("what", ["folder", "fifo"])
def test_a_log_that_is_none_keeps_nobody_waiting(home: Path, what: str, secret: Path) -> None:
    codes = {"folder": f"os.symlink({str(secret.parent)!r}, at / 'part-0')",
            "fifo": "(at / 'part-0').mkdir(); os.mkfifo(at / 'part-0' / 'log-0.txt')"}  # fmt: skip
    finished(home, f"os.rename(at / 'part-0', at / 'away'); {codes[what]}")
    assert read(home) == b""


def test_logs_are_read_as_their_owner(home: Path) -> None:
    finished(home, "print('words')")
    assert read(home) == b"words\n"


def test_what_an_elastic_job_is_told_is_written_as_its_owner(home: Path, secret: Path) -> None:
    """Links in the place of every draft that could be written lead to a file of root's."""
    code = f"""
for number in range(os.getppid() - 3, os.getppid() + 4):
    os.symlink({str(secret)!r}, at / f'.gpus.json.{{number}}')
(at / 'ready').touch()
while not (at / 'gpus.json').exists(): time.sleep(0.02)
told = json.loads((at / 'gpus.json').read_text())
(at / 'gpus-used.json').write_text(json.dumps({{'run': told['run']}}))
time.sleep(0.5)
"""
    one = machines(home)
    task = evil(code, elastic=True)
    one.start(order(1, task, (0, 1)))
    seen(one, 1, lambda run: (home / "apps/0-app/job-0/run-1/ready").exists())
    assert one.resize(RunKey(0, 0, 1), Order(RunKey(0, 0, 2), "app", (0,), (RunPart("left", (0,)),), task))
    assert seen(one, 1, lambda run: run.run == 2 or bool(run.ended)).run == 2
    assert seen(one, 1).ended == "finished"
    assert secret.read_text() == SECRET


def bytes_read() -> int:
    """By this process, from files and from pipes."""
    [counted] = re.findall(r"^rchar: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    return int(counted)


@pytest.mark.parametrize("name", ["progress.json", "checkpoint", "ready", "gpus-used.json", "result.json"])
@pytest.mark.parametrize("what", ["fifo", "sparse", "link"])
def test_what_a_job_puts_into_its_folder_blocks_nobody(
    home: Path, name: str, what: str, secret: Path
) -> None:
    code = {
        "fifo": f"os.mkfifo(at / {name!r})",
        "sparse": f"os.truncate(os.open(at / {name!r}, os.O_RDWR | os.O_CREAT), 3 << 30)",
        "link": f"os.symlink({str(secret)!r}, at / {name!r})",
    }[what]
    before = bytes_read()
    one = finished(home, code)
    assert not one.look().runs[RunKey(0, 0, 1)].progress
    assert machines(home).look().runs.keys() == {RunKey(0, 0, 1)}  # the next arbiter
    one.forget(RunKey(0, 0, 1))
    finished(home, "pass", run=2)
    assert bytes_read() - before < 1 << 30
    assert secret.read_text() == SECRET


FORGE = """
victim = {'key': [1, 0, 1], 'app': 'victim', 'gpus': [1], 'parts': [{'machine': 'left', 'gpus': [1]}],
          'task': {'command': ['true']}}
for top in (at / 'part-7', at.parent / 'run-1' / 'part-8', at):
    top.mkdir(exist_ok=True)
    (top / 'order.json').write_text(json.dumps({'part': {'order': victim, 'place': 0}}))
    (top / 'keeper.txt').touch()
    (top / 'outcome.json').write_text(json.dumps({'codes': [0], 'asked': False, 'first': 0}))
    (top / 'brought.json').write_text(json.dumps({'job': '1-victim/job-0', 'run': 1, 'stamp': [1 << 62, 1]}))
"""


def test_what_a_job_says_of_others_is_not_heard(home: Path) -> None:
    finished(home, FORGE)
    assert machines(home).look().runs.keys() == {RunKey(0, 0, 1)}


def test_a_checkpoint_of_another_is_not_announced(open_path: Path) -> None:
    with two_hosts(open_path) as (office, left, _):
        office.started(on_hosts(1, evil(FORGE), "left.1"))
        assert office.seen(1).ended == "finished"
        [place] = left.folder.glob("*/orders")
        assert list(all_held(place.parent)) == []
        waited(lambda: office.backend.look())
        assert office.backend._newest("1-victim/job-0") is None


def test_nobody_else_can_lock_what_is_ours(home: Path) -> None:
    finished(home, "pass")
    locks = list((home / "locks").iterdir())
    assert locks
    for path in (*locks, *home.glob("orders/*/*/*/*/alive")):
        assert "Permission denied" in as_user(MALLORY, path.read_text), path


OPEN_BY_MISTAKE = """\
machines: [{{gpus: 2}}]
apps: [{{name: mine, length: 1s, command: "sh -c 'echo words'", env: {{TOKEN: hidden}}}}]
live: {{look: 50ms{access}}}
"""


@pytest.mark.long
@pytest.mark.parametrize("shared", [True, False])
def test_everything_is_for_our_user_alone(open_path: Path, shared: bool) -> None:
    file = open_path / "live.yaml"
    home = open_path / "here.state"
    file.write_text(OPEN_BY_MISTAKE.format(access=", access: {}" if shared else ""))
    before = os.umask(0o022)
    try:
        with arbiter(file, home) as one:
            one.start()
            one.end()
    finally:
        os.umask(before)
    passable = {home, home / "apps"} if shared else set()
    for path in (home, *home.rglob("*")):
        seen = stat.S_IMODE(path.lstat().st_mode)
        assert seen & 0o077 == (0o011 if path in passable else 0) or path.is_socket(), (path, oct(seen))


LIVE = f"""\
machines: [{{gpus: 2}}]
apps: [{{name: first, length: 1s, command: "true"}}]
policy: {{name: fifo}}
live:
  look: 50ms
  access: {{teams: {{red: ["{MALLORY}"], blue: ["{VICTIM}"]}}}}
"""
ENDED = "SELECT outcome FROM apps WHERE name = '{}' AND ended IS NOT NULL"


def accepted(home: Path, user: int, name: str, code: str) -> bool:
    """Whether the arbiter has taken an app of this user; not while nobody listens."""
    words = ["/usr/bin/env", "python3", "-c", HEAD + code]
    app = {"name": name, "length": "1s", "directory": "/", "on_stop": "restart", "command": words}
    answer = as_user(user, lambda: unix_client(home).send("app", app, 60.0))  # type: ignore[union-attr]
    return bool(answer == "accepted")


@pytest.mark.long
def test_an_arbiter_and_another_user_go_on_beside_an_attacker(
    home: Path, secret: Path, open_path: Path
) -> None:
    """The victim runs until it is let go, so that its own end is known from one that was forged."""
    file = open_path / "live.yaml"
    file.write_text(LIVE)
    let_go = open_path / "let-go"
    patient = f"""
print(os.getuid(), flush=True)
while not os.path.exists({str(let_go)!r}): time.sleep(0.02)
print('by itself', flush=True)
"""
    block = f"os.mkfifo(at / 'progress.json'); os.symlink({str(secret)!r}, at / 'checkpoint')\n"
    with arbiter(file, home, "--stay") as one:
        one.start()
        one.waited(lambda: one.query(ENDED.format("first")), "the first app ends")
        assert accepted(home, VICTIM, "victim", patient)
        one.waited(lambda: list(home.glob("apps/1-*/job-0/run-1/part-0/log-0.txt")), "it runs")
        assert accepted(home, MALLORY, "evil", block + FORGE + "time.sleep(600)")
        one.waited(lambda: list(home.glob("apps/2-*/job-0/run-1/brought.json")), "the attack is done")
        one.kill()
        one.start()
        one.waited(lambda: accepted(home, VICTIM, "later", "pass"), "the next arbiter has had a turn")
        assert not one.query(ENDED.format("victim"))
        let_go.touch()
        one.waited(lambda: one.query(ENDED.format("victim")), "the victim's ends")
        assert one.query(ENDED.format("victim")) == [("finished",)]
        assert one.query("SELECT run, outcome FROM runs WHERE app = 1") == [(1, "finished")]
        [log] = home.glob("apps/1-victim/job-0/run-1/part-0/log-0.txt")
        assert log.read_text() == f"{VICTIM}\nby itself\n"
        logs = as_user(MALLORY, lambda: [str(piece) for piece in unix_client(home).logs("evil", {})[1]])  # type: ignore[union-attr]
        assert logs == []
        assert "needs an operator" in as_user(MALLORY, lambda: unix_client(home).logs("victim", {}))  # type: ignore[union-attr]
        assert "Permission denied" in as_user(MALLORY, lambda: os.listdir(home / "apps" / "1-victim"))


def test_only_processes_of_owners_open_what_jobs_can_write() -> None:
    """Root's code has no way into such a folder: it does not import one."""
    top = Path(astrarium.cluster.live.__file__).parent
    openers = set()
    readers = set()
    for path in top.rglob("*.py"):
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        openers |= {path.stem} if names & {JobFolder.__name__, "clear_earlier"} else set()
        readers |= {path.stem} if "log_pieces" in names else set()
    assert openers == {"runner", "claim_reader", "job_logs", "errands"}
    assert readers <= {"state_folder", "as_owner"}


WATCHED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
below, touched = sys.argv[3], []
def hook(event, arguments):
    paths = [os.fsdecode(argument) for argument in arguments if isinstance(argument, (str, bytes))]
    if os.geteuid() == 0 and event.split('.')[0] in ('open', 'os', 'shutil'):
        touched.extend((event, path) for path in paths if path.startswith(below))
sys.addaudithook(hook)
from keeping.keeper import Keeper
Keeper(Path(sys.argv[2])).keep()
print(touched)
"""


def test_a_keeper_that_is_root_touches_nothing_of_a_job(home: Path) -> None:
    """Seen by what the interpreter itself says that it opens, makes, renames and removes."""
    finished(home, "(at / 'checkpoint').write_text('mine'); (at / 'ready').touch(); print('words')")
    [part] = home.glob("orders/*/*/run-1/part-0")
    (part / "outcome.json").unlink()
    words = [str(Path(astrarium.cluster.live.__file__).parent / "machine"), str(part), str(home / "apps")]
    done = subprocess.run([sys.executable, "-c", WATCHED, *words], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done
    assert json.loads((part / "outcome.json").read_text())["codes"] == [0]


FOUR = "-all,+setuid,+setgid,+kill,+chown"
WITH_FOUR = """
import sys
from pathlib import Path
from tests.cluster.live.test_attacks import read
from astrarium.cluster.live.backend import RunKey
from tests.support.cluster.attacks import evil, machines
from tests.support.cluster.backend import order, seen
home = Path(sys.argv[1])
one = machines(home)
one.start(order(1, evil("print('words', flush=True); (at / 'ready').touch(); time.sleep(600)")))
seen(one, 1, lambda run: read(home) == b"words\\n")
one.stop(RunKey(0, 0, 1))
assert seen(one, 1).ended == "stopped"
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv")
def test_root_needs_four_capabilities(home: Path) -> None:
    """They are what the page on access has a unit of systemd leave it."""
    inside = ["setpriv", f"--bounding-set={FOUR}", "--inh-caps=-all"]
    subprocess.run([*inside, sys.executable, "-c", WITH_FOUR, str(home)], check=True, timeout=120)
