"""Clients in processes of their own, which are measured alone and together in windows that coincide.

    with running([Spec("serve", "resnet50", 4), Spec("train", "bert_base", 8)]) as (server, trainer):
        alone = window({server: "busy=0.25"}, seconds=2)[server]
        both = window({server: "busy=0.25", trainer: "lead=0.1 tail=0.1"}, seconds=2)

Nothing here waits for ever: a client that does not answer in time is an error with the end of its log in it,
and on the way out all clients are ended, each by the id of its own process group.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import Empty, Queue
from statistics import fmean
from typing import Any

Outcome = dict[str, Any]  # what a client said of a window

PAIR = ("policy", "high priority", "arrivals", "busy", "best effort")
HEADER = (*PAIR, "p99 ms", "alone", "ratio", "BE it/s", "BE alone", "share", "left", "over")
SUMMARY = ("pair", "policy", "pairs", "HP cost", "largest", "p50", "BE share", "left", "over", "sum")


@dataclass(frozen=True)
class Row:
    """Both clients of a pair, each alone and beside the other, with the same arrivals in both."""

    kinds: str
    policy: str
    hp: str
    arrivals: str
    busy: float  # as asked for; what the arrivals made of it is in the outcomes
    be: str
    hp_alone: Outcome
    hp_shared: Outcome
    be_alone: Outcome
    be_shared: Outcome

    @property
    def key(self) -> tuple[str, str, str, str, float, str]:
        return (self.kinds, self.policy, self.hp, self.arrivals, self.busy, self.be)

    @property
    def serves(self) -> bool:
        """Return whether the high-priority client is judged by latency; else by its iterations."""
        return self.hp_alone["kind"] == "serve"

    @property
    def hp_cost(self) -> float:
        """Return how many times worse off the high-priority client is than alone: in its p99, or in its
        pace."""
        if self.serves:
            return self.hp_shared["p99_ms"] / self.hp_alone["p99_ms"]
        return self.hp_alone["per_second"] / self.hp_shared["per_second"]

    @property
    def median_ratio(self) -> float:
        return self.hp_shared["p50_ms"] / self.hp_alone["p50_ms"]

    @property
    def be_share(self) -> float:
        return self.be_shared["per_second"] / self.be_alone["per_second"]

    @property
    def busy_share(self) -> float:
        """Return the part of the time that the requests of the window would take one by one, alone."""
        alone = self.hp_alone
        return (alone["count"] + alone["unserved"]) * alone["service_ms"] / 1000 / alone["seconds"]

    @property
    def left(self) -> float:
        """Return what perfect time-sharing would leave to best effort."""
        return max(0.0, 1 - self.busy_share) if self.serves else max(0.0, 1 - 1 / self.hp_cost)

    @property
    def total(self) -> float:
        """Return both shares of the GPU: above one, sharing did more work than taking turns would."""
        return (self.busy_share if self.serves else 1 / self.hp_cost) + self.be_share


def append(path: Path, row: Row) -> None:
    """Write a row at once, so that a run that is cut short keeps what it has."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read(path: Path) -> list[Row]:
    """Return the rows of all whole lines; the last one may have been cut."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(Row(**json.loads(line)))
        except json.JSONDecodeError:
            continue
    return rows


def settled(rows: Sequence[Row]) -> list[Row]:
    """What clients did alone was measured now and then, and varies. Best effort is held against its best, a
    high-priority client against the mean."""
    by_be: dict[Any, list[Outcome]] = {}
    by_load: dict[Any, list[Outcome]] = {}
    for row in rows:
        by_be.setdefault((row.kinds, row.be), []).append(row.be_alone)
        by_load.setdefault((row.kinds, row.hp, row.arrivals, row.busy), []).append(row.hp_alone)
    best = {key: max(outcomes, key=lambda outcome: outcome["per_second"]) for key, outcomes in by_be.items()}
    usual = {key: averaged(distinct(outcomes)) for key, outcomes in by_load.items()}
    loads = [(row.kinds, row.hp, row.arrivals, row.busy) for row in rows]
    return [
        replace(row, be_alone=best[row.kinds, row.be], hp_alone=usual[load])
        for row, load in zip(rows, loads, strict=True)
    ]


def distinct(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return each measurement once: several rows may hold the same."""
    return [outcome for index, outcome in enumerate(outcomes) if outcome not in outcomes[:index]]


def averaged(outcomes: Sequence[Outcome]) -> Outcome:
    times = [name for name in outcomes[0] if name.endswith("_ms") or name == "per_second"]
    return {**outcomes[0], **{name: fmean(outcome[name] for outcome in outcomes) for name in times}}


def table(rows: Sequence[Row]) -> str:
    return aligned(HEADER, [cells(row) for row in rows])


def cells(row: Row) -> tuple[str, ...]:
    of = "p99_ms" if row.serves else "mean_ms"
    hp = (f"{row.hp_shared[of]:.2f}", f"{row.hp_alone[of]:.2f}", f"{row.hp_cost:.2f}")
    be = (f"{row.be_shared['per_second']:.1f}", f"{row.be_alone['per_second']:.1f}")
    shares = (f"{row.be_share:.2f}", f"{row.left:.2f}", f"{row.be_share - row.left:+.2f}")
    return (row.policy, row.hp, row.arrivals, f"{row.busy:.0%}", row.be, *hp, *be, *shares)


def summary(rows: Sequence[Row]) -> str:
    """Return a line for each kind of pair and policy, the cheapest for the high-priority client first."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.kinds, row.policy), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], mean(item[1], lambda row: row.hp_cost)))
    return aligned(SUMMARY, [(*names, *summed(members)) for names, members in ordered])


def summed(rows: Sequence[Row]) -> tuple[str, ...]:
    numbers = (
        mean(rows, lambda row: row.hp_cost),
        max(row.hp_cost for row in rows),
        mean(rows, lambda row: row.median_ratio),
        mean(rows, lambda row: row.be_share),
        mean(rows, lambda row: row.left),
    )
    over = mean(rows, lambda row: row.be_share - row.left)
    total = mean(rows, lambda row: row.total)
    return (str(len(rows)), *(f"{x:.3f}" for x in numbers), f"{over:+.3f}", f"{total:.3f}")


def mean(rows: Sequence[Row], of: Callable[[Row], float]) -> float:
    return fmean(map(of, rows))


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table as Markdown, which is one on a terminal too."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    bordered = [header, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in bordered)


PROGRAM = Path(__file__).resolve().parent / "clients.py"
START_S = 240.0  # nine clients at once read torch from a cold disk
ANSWER_S = 60.0  # beyond twice the window: queues that drain, a calibration
LEAVE_S = 5.0  # between being asked to quit, told to, and made to
HEAD_START_NS = 60_000_000  # for the orders to be read before the window begins


class ClientFailed(RuntimeError):
    """A client did not do what it was asked to; the message says which, what, and what it last wrote."""


@dataclass(frozen=True)
class Spec:
    """A client that can be started: its program, its model, and where it stands."""

    kind: str
    model: str
    batch: int
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, compare=False)
    prefix: tuple[str, ...] = ()  # a command that runs the program, such as `astrarium gate run ... --`

    @property
    def name(self) -> str:
        return f"{self.model} b{self.batch}"

    def command(self) -> list[str]:
        program = [sys.executable, str(PROGRAM), self.kind, self.model, "--batch", str(self.batch)]
        return [*self.prefix, *program, *self.options]


class Client:
    """One running program, its orders and its answers."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec = spec
        self._log = folder / f"{time.monotonic_ns()}-{spec.kind}-{spec.model}.log"
        self.facts: dict[str, Any] = {}
        self._answers: Queue[str] = Queue()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                spec.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **spec.environment},
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def ready(self, patience_s: float = START_S) -> dict[str, Any]:
        """Return what the client says of itself once it is warm."""
        word, _, facts = self._line(patience_s, "get ready").partition(" ")
        if word != "ready":
            raise self._failed(f"said {word!r} where 'ready' was expected")
        self.facts = json.loads(facts)
        return self.facts

    def order(self, line: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed(f"could not be told {line!r}") from None

    def outcome(self, patience_s: float = ANSWER_S) -> dict[str, Any]:
        answer = json.loads(self._line(patience_s, "answer"))
        if "error" in answer:
            raise self._failed(f"refused: {answer['error']}")
        return answer

    def leave(self) -> None:
        with suppress(ClientFailed, OSError):
            self.order("quit")

    def end(self) -> None:
        """It was asked to leave; it is told, then made to. Its group is its own: nobody else is in it."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE_S)
                break

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._answers.put(line.strip())
        self._answers.put("")  # no more will come

    def _line(self, patience_s: float, what: str) -> str:
        try:
            line = self._answers.get(timeout=patience_s)
        except Empty:
            raise self._failed(f"did not {what} within {patience_s:g} s") from None
        if not line:
            self._answers.put("")
            raise self._failed(f"ended before it could {what}")
        return line

    def _failed(self, what: str) -> ClientFailed:
        tail = self._log.read_text(encoding="utf-8", errors="replace")[-1500:]
        return ClientFailed(f"{self.spec.kind} {self.spec.name} (process {self._process.pid}) {what}\n{tail}")


@contextmanager
def running(specs: Sequence[Spec], patience_s: float = START_S) -> Iterator[list[Client]]:
    """Hand out warm clients, started at once; one that awaits an order takes only memory of the GPU."""
    clients: list[Client] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            clients += [Client(spec, Path(folder)) for spec in specs]
            until = time.monotonic() + patience_s
            for client in clients:
                client.ready(max(0.1, until - time.monotonic()))
            yield clients
        finally:
            for client in clients:
                client.leave()
            for client in clients:
                client.end()


def window(orders: Mapping[Client, str], seconds: float, lead_s: float = 0.0) -> dict[Client, dict[str, Any]]:
    """Have all these clients work in the same seconds; return what each of them says of it."""
    at = time.monotonic_ns() + HEAD_START_NS + int(lead_s * 1e9)
    for client, words in orders.items():
        client.order(f"go {seconds} at={at} {words}")
    return {client: client.outcome(2 * seconds + ANSWER_S) for client in orders}
