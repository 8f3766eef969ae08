"""Small networks whose output is an image again."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SuperResolution(nn.Module):
    """Sub-pixel convolutions on one channel (Shi et al., 2016)."""

    def __init__(self, scale: int = 3) -> None:
        super().__init__()
        sizes = ((1, 64, 5), (64, 64, 3), (64, 32, 3))
        layers = [layer for i, o, k in sizes for layer in (nn.Conv2d(i, o, k, padding=k // 2), nn.ReLU())]
        last = nn.Conv2d(32, scale * scale, 3, padding=1)
        self.body = nn.Sequential(*layers, last, nn.PixelShuffle(scale))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Vae(nn.Module):
    """A variational autoencoder of 28x28 images with one hidden layer (Kingma and Welling, 2013)."""

    def __init__(self, hidden: int = 400, code: int = 20) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, hidden), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(hidden, code), nn.Linear(hidden, code)
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, 784), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        spread = torch.exp(0.5 * log_variance)
        code = mean + spread * torch.randn_like(spread) if self.training else mean
        return self.decoder(code), mean, log_variance
