"""Small trainings for tests of backends: seconds of work at most, on a CPU."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from astrarium.tuning import Workers, iterations
from astrarium.tuning.live import local
from astrarium.tuning.live.slots.fork_server import ForkServer

BATCH = 12


class Small:
    """Learns a plane from random points, with momentum and dropout: all that a checkpoint must bring back.
    `pause` seconds go by in each iteration."""

    def __init__(self, values: dict[str, Any], workers: Workers) -> None:
        self.values = values
        self.workers = workers
        dropout = nn.Dropout(values.get("dropout", 0.0))
        self.plain = nn.Sequential(nn.Linear(4, 8), dropout, nn.Linear(8, 1)).double()
        self.model = workers.parallel(self.plain)
        self.optimizer = torch.optim.SGD(self.plain.parameters(), lr=values.get("rate", 0.05), momentum=0.9)

    def step(self) -> float:
        points = torch.randn(BATCH, 4, dtype=torch.float64)
        mine = self.workers.share(points)
        self.optimizer.zero_grad()
        loss = (self.model(mine) - mine.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()
        time.sleep(self.values.get("pause", 0.0))
        return self.workers.mean(float(loss.item()))

    def save(self) -> Any:
        return {"model": self.plain.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: Any) -> None:
        self.plain.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class Troubled(Small):
    """What the value `trouble` says happens in its third iteration, on the worker `where`: once, where a file
    `once` is named."""

    count = 0

    def step(self) -> float:
        self.count += 1
        if self.count == 3 and self.workers.rank == self.values.get("where", 0) and self._not_yet():
            getattr(self, self.values["trouble"])()
        return super().step()

    def _not_yet(self) -> bool:
        once = self.values.get("once")
        try:
            if once is not None:
                Path(once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def error(self) -> None:
        raise ValueError("the loss is green")

    def death(self) -> None:
        os._exit(3)

    def silence(self) -> None:
        """Not even its threads get on."""
        os.kill(os.getpid(), 19)

    def sleep(self) -> None:
        time.sleep(600)


def build(values: dict[str, Any], workers: Workers) -> Small:
    return Troubled(values, workers) if "trouble" in values else Small(values, workers)


class _Lent:
    """A fork server that stays when its backend goes."""

    def __init__(self, real: ForkServer) -> None:
        self.fork = real.fork
        self._process = real._process

    def close(self) -> None:
        pass


_fork_servers: dict[str, ForkServer] = {}


def _lent(environment: Any, preload: Any, temporary_folder: str = "") -> Any:
    variables = {name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"}
    key = repr((sorted(variables.items()), preload))
    if key not in _fork_servers:
        _fork_servers[key] = ForkServer(environment, preload)
        atexit.register(_fork_servers[key].close)
    return _Lent(_fork_servers[key])


@contextmanager
def one_fork_server() -> Iterator[None]:
    """All tests of this process share it: loading PyTorch takes seconds each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "ForkServer", _lent)
        yield


class Odd(Small):
    """What the value `kind` says happens in each iteration."""

    def step(self) -> float:
        return float(getattr(self, self.values["kind"])())

    def untidy(self) -> float:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        os.chdir("/")
        os.environ["LEFT_BEHIND"] = "1"
        return 0.0

    def looks(self) -> float:
        """How much it finds that another has changed."""
        changed = torch.get_default_dtype() != torch.float32, not torch.is_grad_enabled()
        return sum([*changed, os.getcwd() == "/", "LEFT_BEHIND" in os.environ])

    def dies_before_its_child(self) -> float:
        """The child has all that the process had, its pipe among it."""
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        Path(self.values["child"]).write_text(str(child))
        os._exit(3)

    def stays(self) -> float:
        time.sleep(0.01)
        return 0.0

    def close(self) -> None:
        if self.values["kind"] == "stays" and self.workers.rank == 1:
            time.sleep(600)


class Unfinished:
    def step(self) -> float:
        return 0.0


def odd(values: dict[str, Any], workers: Workers) -> Any:
    return Unfinished() if values["kind"] == "unfinished" else Odd(values, workers)


def attributed(trial: Any) -> float:
    """An objective of Optuna that has something to say before, in and after its loop."""
    trial.set_user_attr("before", trial.suggest_float("rate", 0.1, 1.0))
    for epoch in iterations(trial, 2):
        trial.set_user_attr("epoch", epoch)
        trial.report(1.0, epoch)
    trial.set_user_attr("after", ["all", 1])
    return 1.0
