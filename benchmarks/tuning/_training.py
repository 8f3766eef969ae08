"""The training of the tuning benchmark: a small PyTorch model on emulated GPUs, and the same for Ray Tune.

An iteration is as long as its candidate's layer is wide, on a GPU by itself. Each notes when it began and
ended in a file, so that all ways of running the search are timed alike.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from astrarium.core.random_streams import stream
from astrarium.tuning import Workers
from astrarium.tuning.live.random_states import random_states, restore_random, seed_all

SEED = 0
MEAN = 0.5  # seconds of an iteration
POINTS = torch.linspace(-2, 2, 64).double().unsqueeze(1)


class Training:
    """Two layers that learn a sine."""

    def __init__(self, values: dict[str, Any], workers: Workers) -> None:
        width = int(values["width"])
        layers = torch.nn.Linear(1, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
        self._model = torch.nn.Sequential(*layers).double()
        self._trained = workers.parallel(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=values["rate"], momentum=0.9)
        # widths are 8 to 56
        self._workers = workers
        self._seconds = MEAN * (0.5 + width / 64)
        self._log = values["log"]
        self._number = values.get("number", -1)
        self._done = 0

    def step(self) -> float:
        began = time.monotonic()
        batch = self._workers.share(POINTS[torch.randperm(64)[:48]])
        self._optimizer.zero_grad()
        torch.nn.functional.mse_loss(self._trained(batch), torch.sin(2 * batch)).backward()
        self._optimizer.step()
        with torch.no_grad():
            loss = float(torch.nn.functional.mse_loss(self._model(POINTS), torch.sin(2 * POINTS)))
        self._workers.emulate(self._seconds)
        self._done += 1
        if self._workers.rank == 0:
            self._note(began)
        return loss

    def save(self) -> Any:
        return self._model.state_dict(), self._optimizer.state_dict(), self._done

    def load(self, state: Any) -> None:
        self._model.load_state_dict(state[0])
        self._optimizer.load_state_dict(state[1])
        self._done = state[2]

    def _note(self, began: float) -> None:
        line = f"{self._done} {began} {time.monotonic()}\n".encode()
        file = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line)
        os.close(file)


def build(values: dict[str, Any], workers: Workers) -> Training:
    return Training(values, workers)


def trainable() -> Any:
    """Return a class of Ray Tune that trains the same, from the same seeds, and can be used again for
    others."""
    from ray import tune

    class Trainable(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self._workers = Workers()
            seed_all(int(stream(SEED, "training", config["number"]).integers(2**31)))
            values = config["all"][config["number"]]
            self._training = Training({**values, "log": config["log"]}, self._workers)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.setup(new_config)
            return True

        def step(self) -> dict[str, Any]:
            self._workers.begin()
            return {"loss": self._training.step()}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            saved = {"state": self._training.save(), "random": random_states()}
            torch.save(saved, Path(checkpoint_dir, "state.pt"))

        def load_checkpoint(self, checkpoint: Any) -> None:
            checkpointed = torch.load(Path(checkpoint, "state.pt"), weights_only=True)
            restore_random(checkpointed["random"])
            self._training.load(checkpointed["state"])

    return Trainable
