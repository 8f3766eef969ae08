"""A small convolutional network on pictures that are made up: what one tunes by the dozen."""

from __future__ import annotations

import os
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from astrarium.tuning import Workers

TINY = "TUNING_CNN_TINY" in os.environ  # to try it out on a CPU
BATCHES = 1 if TINY else 120  # in an iteration
TRAINED, TESTED = (256, 64) if TINY else (8192, 2048)
CLASSES = 10
SIZE = 32
NOISE = 6.0  # of a picture, against the pattern of its class

SPACE = {
    "rate": {"low": 0.003, "high": 0.3, "log": True},
    "momentum": {"low": 0.5, "high": 0.95},
    "channels": {"options": [16, 24, 32]},
}


class SmallNet(nn.Sequential):
    def __init__(self, channels: int) -> None:
        layers: list[nn.Module] = []
        sizes = [3, channels, 2 * channels, 4 * channels]
        for before, after in pairwise(sizes):
            layers += [
                nn.Conv2d(before, after, 3, padding=1),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        super().__init__(*layers, nn.Flatten(), nn.Linear(4 * channels * (SIZE // 8) ** 2, CLASSES))


@cache
def pictures(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures with their classes. A pattern for each class, hidden in noise; the same for every
    trial."""
    chance = torch.Generator(device).manual_seed(7)
    patterns = torch.randn(CLASSES, 3, SIZE, SIZE, generator=chance, device=device)
    labels = torch.randint(CLASSES, (TRAINED + TESTED,), generator=chance, device=device)
    noise = torch.randn(len(labels), 3, SIZE, SIZE, generator=chance, device=device)
    return patterns[labels] + NOISE * noise, labels


class Training:
    def __init__(self, values: dict[str, Any], workers: Workers) -> None:
        torch.manual_seed(workers.seed)
        self._workers = workers
        (self._images, self._labels) = pictures(workers.device)
        self._model = SmallNet(values["channels"]).to(workers.device)
        self._parallel = workers.parallel(self._model)
        self._optimizer = torch.optim.SGD(
            self._model.parameters(), lr=values["rate"], momentum=values["momentum"]
        )

    def step(self) -> float:
        """An iteration is so many batches; a candidate is worth its accuracy on pictures it has not seen."""
        self._model.train()
        for _ in range(BATCHES):
            chosen = torch.randint(TRAINED, (128,)).to(self._images.device)
            self._learn(self._workers.share(chosen))
        self._model.eval()
        with torch.no_grad():
            guessed = self._model(self._images[TRAINED:]).argmax(1)
        return float((guessed == self._labels[TRAINED:]).float().mean())

    def save(self) -> Any:
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load(self, state: Any) -> None:
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _learn(self, chosen: torch.Tensor) -> None:
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._parallel(self._images[chosen]), self._labels[chosen])
        loss.backward()
        self._optimizer.step()


def build(values: dict[str, Any], workers: Workers) -> Training:
    return Training(values, workers)
