"""What it costs a live trial to go on elsewhere: on more GPUs, on fewer, or on a share of one.

A small model trains on two emulated GPUs, and is moved again and again. The gap is the time from the end of
its last iteration at the old place to the start of the first one at the new place. Saving, building and
loading it are the checkpoint; the rest is ours, the new process group among it. Processes that train import
this file too, and write down when each part began and ended: one clock holds for a whole machine.

    python benchmarks/tuning/resize.py --moves 50
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from astrarium.tuning.live.backend import Checkpoint, Iterated, RunEnded, Work
from astrarium.tuning.live.local import LocalTrialBackend
from astrarium.tuning.live.slots import member
from astrarium.tuning.live.training.workers import Emulated, Workers
from astrarium.tuning.runtime import Place

BAR = 50.0  # ms besides the checkpoint
CHECKPOINT = ("save", "build", "load")
ONE = Place((0,))
TWO = Place((0, 1))
HALF = Place((0,), 2)
MOVES = {"1 → 2": (ONE, TWO), "2 → 1": (TWO, ONE), "1 → 1/2": (ONE, HALF), "1/2 → 1": (HALF, ONE)}
ENDLESS = 10**9
LOG = "ASTRARIUM_RESIZE_LOG"  # the file in which processes write their parts down


class MoveTiming(NamedTuple):
    """What a move took, in seconds: *gap* from the last iteration to the next, and its *parts* by name."""

    gap: float
    parts: dict[str, float]


class Perceptron:
    """About 270,000 parameters, with momentum."""

    def __init__(self, values: dict[str, Any], workers: Workers) -> None:
        self.workers = workers
        self.plain = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
        self.model = workers.parallel(self.plain)
        self.optimizer = torch.optim.SGD(self.plain.parameters(), lr=0.01, momentum=0.9)

    def step(self) -> float:
        batch = self.workers.share(torch.randn(32, 256))
        self.optimizer.zero_grad()
        loss = (self.model(batch) - batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def save(self) -> Any:
        return {"model": self.plain.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: Any) -> None:
        self.plain.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which writes down its process, its name, and when it began and ended."""

    def noted(*arguments: Any, **more: Any) -> Any:
        began = time.monotonic()
        try:
            return function(*arguments, **more)
        finally:
            line = json.dumps([os.getpid(), name, began, time.monotonic()]) + "\n"
            with open(os.environ[LOG], "a", encoding="utf-8") as file:
                file.write(line)

    return noted


def watch() -> None:
    """Watch all parts of a move in this process."""
    for name, method in {"build": "__init__", "step": "step", "save": "save", "load": "load"}.items():
        setattr(Perceptron, method, timed(name, getattr(Perceptron, method)))
    for where, name, known in (
        (member, "write", "save"),
        (member, "read", "load"),
        (torch.distributed, "init_process_group", "group"),
    ):
        setattr(where, name, timed(known, getattr(where, name)))


def timings(lines: Sequence[str]) -> list[MoveTiming]:
    """Return what each move took. Only the first member of a gang saves, so that others can be left out."""
    parts = [tuple(json.loads(line)) for line in lines]
    leaders = {process for process, name, _, _ in parts if name == "save"}
    moves = list[MoveTiming]()
    last = 0.0
    took = dict[str, float]()
    for _, name, began, ended in sorted(
        (part for part in parts if part[0] in leaders), key=lambda part: part[2]
    ):
        if name != "step":
            took[name] = took.get(name, 0.0) + ended - began
            continue
        if "save" in took:
            moves.append(MoveTiming(began - last, took))
        last = ended
        took = {}
    return moves


def moved(backend: LocalTrialBackend, places: Sequence[Place], moves: int) -> list[MoveTiming]:
    """To and fro: only changes from the first place to the second count."""
    log = Path(os.environ[LOG])
    log.write_text("", encoding="utf-8")
    start = None
    for run in range(2 * moves + 1):
        backend.start(Work(0, run, 0, {}, places[run % 2], ENDLESS, start))
        _until(backend, Iterated, run)
        time.sleep(0.02)
        backend.stop(0, run)
        start = Checkpoint(0, _until(backend, RunEnded, run).iterations)
    return timings(log.read_text(encoding="utf-8").splitlines())[::2]


def _until(backend: LocalTrialBackend, kind: type, run: int, limit: float = 60.0) -> Any:
    until = time.monotonic() + limit
    while time.monotonic() < until:
        for news in backend.hear(1.0):
            if isinstance(news, RunEnded) and news.ending != "left":
                raise RuntimeError(f"{news}")
            if isinstance(news, kind) and news.run == run:
                return news
    raise TimeoutError(f"no {kind.__name__} of run {run} within {limit:g} s")


def ours(change: MoveTiming) -> float:
    """Milliseconds besides the checkpoint."""
    return 1e3 * (change.gap - sum(change.parts.get(name, 0.0) for name in CHECKPOINT))


def at(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=30, help="of each kind")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    options = parser.parse_args()
    summaries: dict[str, dict[str, float]] = {}
    print(f"| move | n | besides the checkpoint p50 | p99 | {' | '.join(CHECKPOINT)} | group | gap p50 |")
    print(f"|{' --- |' * 9}  (ms; at most {BAR:g} besides the checkpoint)")
    folder = tempfile.TemporaryDirectory(prefix="astrarium-resize-")
    os.environ[LOG] = str(Path(folder.name, "parts.jsonl"))
    training = f"{Path(__file__).resolve()}:{Perceptron.__name__}"
    with LocalTrialBackend(training, 2, Emulated(), memory=True, checkpoint_seconds=3600.0) as backend:
        moved(backend, (ONE, TWO), 2)  # libraries are loaded at first use
        for name, places in MOVES.items():
            summaries[name] = row = summary(moved(backend, places, options.moves))
            print(f"| {name} | {' | '.join(f'{value:.3g}' for value in row.values())} |", flush=True)
    folder.cleanup()
    if options.json is not None:
        options.json.write_text(json.dumps(summaries, indent=1, ensure_ascii=False) + "\n")


def summary(changes: Sequence[MoveTiming]) -> dict[str, float]:
    own = [ours(change) for change in changes]
    parts = {
        name: at([1e3 * change.parts.get(name, 0.0) for change in changes], 0.5)
        for name in (*CHECKPOINT, "group")
    }
    gap = at([1e3 * change.gap for change in changes], 0.5)
    return {"n": len(changes), "p50": at(own, 0.5), "p99": at(own, 0.99), **parts, "gap": gap}


if __name__ == "__main__":
    main()
elif LOG in os.environ:
    watch()
