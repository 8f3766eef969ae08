"""A small convolutional network that learns to tell ten noisy patterns apart: what live.yaml tunes.

An iteration is one pass over the pictures. On GPUs that are emulated it takes as long as it would take
on a GPU that needs 0.3 s for it alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from astrarium.tuning import Workers

CLASSES = 10
SIDE = 12
PICTURES = 640
BATCH = 64
NOISE = 1.2
SECONDS = 0.3  # of an iteration on an emulated GPU by itself


def pictures(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same patterns for everybody, with noise of their own."""
    patterns = torch.randn(CLASSES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=chance)
    return patterns[labels] + NOISE * torch.randn(count, 1, SIDE, SIDE, generator=chance), labels


class SmallCnn:
    def __init__(self, values: dict[str, Any], workers: Workers) -> None:
        self.workers = workers
        channels = int(values["channels"])
        device = workers.device
        self.plain = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(8 * channels, CLASSES),
        ).to(device)  # fmt: skip
        self.model = workers.parallel(self.plain)
        self.optimizer = torch.optim.SGD(
            self.plain.parameters(), lr=values["rate"], momentum=values["momentum"]
        )
        self.images, self.labels = (part.to(device) for part in pictures(PICTURES, seed=1))
        self.test_images, self.test_labels = (part.to(device) for part in pictures(PICTURES, seed=2))

    def step(self) -> float:
        """What it is worth: the part of pictures it has never seen that it tells right."""
        order = torch.randperm(PICTURES)  # the same on all workers
        for batch in order.split(BATCH):
            mine = self.workers.share(batch).to(self.workers.device)  # each takes its part of the batch
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.images[mine]), self.labels[mine])
            loss.backward()
            self.optimizer.step()
        with torch.no_grad():
            right = (self.plain(self.test_images).argmax(1) == self.test_labels).float().mean().item()
        if self.workers.device == "cpu":
            self.workers.emulate(SECONDS)
        return right

    def save(self) -> Any:
        return {"model": self.plain.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: Any) -> None:
        self.plain.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def build(values: dict[str, Any], workers: Workers) -> SmallCnn:
    return SmallCnn(values, workers)
