"""What a job does in faults.py: `_fault_job.py KIND STEPS PLACE OTHER`. It is run by a Python of the system.

KIND is `honest`, or the name of an attack below. PLACE is the folder of the benchmark, and OTHER the number
of the other user. A job holds a lock of its own for each of its GPUs (`marks`), and notes in the folder of
its user (`seen-USER`) that it ran, whom it met on a GPU, and what it could do that it must not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from astrarium import cluster_job

KIND = sys.argv[1]
STEPS = int(sys.argv[2])
PLACE = Path(sys.argv[3])
OTHER = sys.argv[4]
FOLDER = Path(os.environ["ASTRARIUM_FOLDER"])
RUN = int(os.environ["ASTRARIUM_RUN"])
SEEN = PLACE / f"seen-{os.getuid()}"
JOBS = FOLDER.parents[3]
CANARY = PLACE / "canary"
PRECIOUS = PLACE / f"home-{OTHER}"
NAMES = ("progress.json", "checkpoint", "ready", "gpus-used.json", "gpus.json", "result.json")
HUGE = 3 << 30  # bytes
AGAIN = 75  # an exit code
FAILED = 3  # an exit code


def main() -> int:
    with gpus_held():
        if KIND == "honest":
            train()
            return 0
        return ATTACKS[KIND]()


@contextlib.contextmanager
def gpus_held() -> Iterator[None]:
    """Hold the marks of our GPUs; the kernel gives them back when this process is gone, however that was."""
    held = []
    for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
        held.append(os.open(PLACE / "marks" / f"gpu-{gpu}", os.O_RDWR | os.O_CLOEXEC))
        try:
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note("met", f"GPU {gpu}")
        note("ran", gpu)
    yield


def note(kind: str, words: str) -> None:
    with (SEEN / kind).open("a") as file:
        file.write(f"{os.environ['ASTRARIUM_APP']} {RUN} {words}\n")


def train() -> None:
    with cluster_job.session(0.3) as session:
        total = session.restore() or 0
        for step in session.steps(STEPS):
            time.sleep(0.02)
            total += step * step
            session.checkpoint(total)
        session.result({"sum": total})


def refused(what: str, deed: Callable[..., object], *words: object) -> None:
    """Note a deed that must fail and did not."""
    try:
        deed(*words)
    except OSError:
        return
    note("could", what)


def put(make: Callable[[Path], object], *paths: Path) -> None:
    """Put something in the place of files, as far as there is room for it."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            make(path)


def of_run(later: int, name: str = "") -> Path:
    return FOLDER.with_name(f"run-{RUN + later}") / name


def next_log() -> Path:
    return of_run(1, "part-0/log-0.txt")


def links() -> int:
    """Links to what only root may read, and to the other user, where this run and later ones have files."""
    put(lambda path: path.symlink_to(CANARY), *(FOLDER / name for name in NAMES), next_log())
    put(lambda path: path.symlink_to(PRECIOUS), of_run(1, "checkpoint"), of_run(2, "part-0"), of_run(3))
    put(lambda path: path.symlink_to(PRECIOUS / "precious"), of_run(2, "checkpoint"))
    print("links", flush=True)
    return AGAIN


def pipes() -> int:
    put(os.mkfifo, *(FOLDER / name for name in NAMES), next_log())
    time.sleep(0.4)
    return AGAIN if RUN == 1 else 0


def sockets() -> int:
    put(lambda path: socket.socket(socket.AF_UNIX).bind(os.path.relpath(path)), *map(FOLDER.joinpath, NAMES))
    return 0


def sparse() -> int:
    put(lambda path: (path.touch(), os.truncate(path, HUGE)), *map(FOLDER.joinpath, NAMES), next_log())
    time.sleep(0.4)
    return AGAIN if RUN == 1 else 0


def folders() -> int:
    put(Path.mkdir, *(FOLDER / name for name in NAMES), next_log())
    with contextlib.suppress(OSError):
        here = FOLDER / "checkpoint"
        for _ in range(150):
            here /= "a"
            here.mkdir()
    time.sleep(0.4)
    return 0


def forged() -> int:
    """Records as keepers write them, which say that all went well; this job fails."""
    words = {"order.json": "{}", "outcome.json": '{"codes": [0], "asked": false, "first": 0}', "closed": "",
             "told.json": '{"progress": 1, "kept": 1, "stamp": [1, 1]}', "alive": "", "stop": ""}  # fmt: skip
    for name, text in words.items():
        for part in ("part-0", "part-9"):
            put(lambda path, text=text: path.write_text(text), FOLDER / part / name, of_run(1, part) / name)
        refused(f"write {name}", (orders() / name).write_text, text)
    refused("make a device", os.mknod, FOLDER / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return FAILED


def orders() -> Path:
    return JOBS / "orders" / FOLDER.relative_to(JOBS / "apps") / "part-0"


def locks() -> int:
    refused("list locks", os.listdir, JOBS / "locks")
    refused("list orders", os.listdir, JOBS / "orders")
    refused("hold a keeper's lock", held, orders() / "alive")
    for machine in range(2):
        for gpu in range(4):
            refused("hold a GPU's lock", held, JOBS / "locks" / f"gpu-machine-{machine}-{gpu}")
    for path in (FOLDER, FOLDER.parent, FOLDER.parents[1], FOLDER / "part-0" / "log-0.txt"):
        with contextlib.suppress(OSError):
            held(path)
    return 0


def held(path: Path) -> None:
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


def daemons() -> int:
    """Processes that leave the session, and have no parent: they must end with this one."""
    number = os.environ["ASTRARIUM_APP"].rpartition("-")[2]
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv("/bin/sleep", ["sleep", f"3000.{number}"])
            os._exit(0)
    return 0


def runner() -> int:
    """The process that has started this one, and is of the same user, is ended."""
    os.kill(os.getppid(), 9)
    time.sleep(60)
    return FAILED


def claims() -> int:
    deep = "[" * 900 + "]" * 900
    long = "0" * 400
    odd = (
        f'{{"progress": 1{long}, "kept": NaN}}', f'{{"progress": {deep}}}', '{"run": -1, "progress": "1"}',
        '{"trouble": "\\ud800\\u001b[2J"}', "[" * 4000, "9" * 4000,
    )  # fmt: skip
    for text in odd:
        for name in ("progress.json", "gpus-used.json"):
            put(lambda path, text=text: path.write_text(text), FOLDER / name)
        time.sleep(0.12)
    return 0


def words() -> int:
    for _ in range(40):
        print("\x1b[2J" + "words " * 5000, flush=True)
    return 0


def elsewhere() -> int:
    refused("read the canary", CANARY.read_bytes)
    refused("look at the other user's", os.listdir, PRECIOUS)
    refused("read the store", (PLACE / "here.state" / "cluster.db").read_bytes)
    refused("list apps", os.listdir, JOBS / "apps")
    refused("make an app", os.mkdir, JOBS / "apps" / "999-mine")
    refused("move an app", os.rename, FOLDER.parents[1], JOBS / "apps" / "mine")
    refused("end the arbiter", os.kill, int((PLACE / "arbiter.pid").read_text()), 9)
    return 0


ATTACKS: dict[str, Callable[[], int]] = {
    attack.__name__: attack
    for attack in (
        links,
        pipes,
        sparse,
        folders,
        forged,
        locks,
        daemons,
        runner,
        claims,
        words,
        elsewhere,
        sockets,
    )
}

if __name__ == "__main__":
    sys.exit(main())
