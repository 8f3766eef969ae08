"""The workloads of the GPU benchmarks by name: a network, batches of random data, and its loss.

A step of training is

    work = build("resnet50")
    module, batch = work.module("cuda"), work.batch(32, "cuda")
    work.loss(module(*batch.inputs), batch.targets).backward()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody writes it)
from torch import Tensor, nn
from vision import (
    SuperResolution,
    Vae,
    alexnet,
    densenet121,
    googlenet,
    mobilenet_v2,
    resnet,
    squeezenet,
    vgg,
)


class Attention(nn.Module):
    """Scaled dot-product attention of several heads over one sequence."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.causal = causal
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(project(x)) for project in (self.query, self.key, self.value))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Attention and a feed-forward network, each added to its input and normalized afterwards."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, causal)
        self.feed = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.after_attention = nn.LayerNorm(width)
        self.after_feed = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.after_attention(x + self.dropout(self.attention(x)))
        return self.after_feed(x + self.dropout(self.feed(x)))


class Bert(nn.Module):
    """BERT-base with its pooler and a classifier of two classes (Devlin et al., 2018)."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 30522) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(512, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        stack = (Layer(width, heads, 4 * width, 0.1, causal=False) for _ in range(layers))
        self.layers = nn.Sequential(*stack)
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(places) + self.segments(torch.zeros_like(tokens))
        x = self.layers(self.dropout(self.norm(x)))
        return self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))


class Transformer(nn.Module):
    """A causal language model of six layers; its output layer shares the weights of its embedding."""

    def __init__(
        self, layers: int = 6, width: int = 512, heads: int = 8, vocabulary: int = 32000, length: int = 192
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(0.1)
        stack = (Layer(width, heads, 4 * width, 0.1, causal=True) for _ in range(layers))
        self.layers = nn.Sequential(*stack)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layers(self.dropout(self.words(tokens) + self.positions(places)))
        return F.linear(x, self.words.weight)


class Seq2Seq(nn.Module):
    """Two-layer LSTMs that read and write, with dot-product attention between them (Luong et al., 2015)."""

    def __init__(self, vocabulary: int = 10000, width: int = 512, layers: int = 2) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2)
        self.decoder = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2)
        self.mix = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        read, state = self.encoder(self.source(source))
        written, _ = self.decoder(self.target(target), state)
        weights = torch.softmax(written @ read.transpose(1, 2), dim=-1)
        return self.out(torch.tanh(self.mix(torch.cat([written, weights @ read], dim=2))))


Device = str | torch.device


class Batch(NamedTuple):
    inputs: tuple[Tensor, ...]  # the arguments of the module
    targets: Tensor


def first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def likeliest(output: Tensor) -> Tensor:
    """Words, not their scores: those of a whole vocabulary would take longer to copy than to compute."""
    return output.argmax(-1)


@dataclass(frozen=True)
class Workload:
    name: str
    network: Callable[[], nn.Module]
    data: Callable[[int, torch.Generator], Batch]
    loss: Callable[[Any, Tensor], Tensor]
    """Takes what the module gave, and the targets."""
    answer: Callable[[Any], Tensor] = first
    """What somebody who asked the module wants to know, of what it gave."""

    def module(self, device: Device = "cpu", seed: int = 0) -> nn.Module:
        """Return a fresh network, made where it will live; the same seed gives the same random weights."""
        on_gpu = torch.device(device).type == "cuda"
        with torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else []), torch.device(device):
            torch.manual_seed(seed)
            return self.network()

    def batch(self, size: int, device: Device = "cpu", seed: int = 0) -> Batch:
        """Return a batch that is made on the CPU, so that all devices see the same numbers."""
        if size < 1:
            raise ValueError(f"batch size: expected at least 1 (got {size})")
        inputs, targets = self.data(size, torch.Generator().manual_seed(seed))
        return Batch(tuple(part.to(device) for part in inputs), targets.to(device))


def images(size: int, chance: torch.Generator, side: int = 224, classes: int = 1000) -> Batch:
    pictures = torch.randn(size, 3, side, side, generator=chance)
    return Batch((pictures,), torch.randint(classes, (size,), generator=chance))


def sentences(size: int, chance: torch.Generator) -> Batch:
    tokens = torch.randint(30522, (size, 128), generator=chance)
    return Batch((tokens,), torch.randint(2, (size,), generator=chance))


def running_text(size: int, chance: torch.Generator, length: int = 192, vocabulary: int = 32000) -> Batch:
    text = torch.randint(vocabulary, (size, length + 1), generator=chance)
    return Batch((text[:, :-1].contiguous(),), text[:, 1:].contiguous())


def translations(size: int, chance: torch.Generator, length: int = 32, vocabulary: int = 10000) -> Batch:
    source = torch.randint(vocabulary, (size, length), generator=chance)
    target = torch.randint(vocabulary, (size, length + 1), generator=chance)
    return Batch((source, target[:, :-1].contiguous()), target[:, 1:].contiguous())


def luminances(size: int, chance: torch.Generator, side: int = 128, scale: int = 3) -> Batch:
    small = torch.rand(size, 1, side, side, generator=chance)
    return Batch((small,), torch.rand(size, 1, scale * side, scale * side, generator=chance))


def digits(size: int, chance: torch.Generator) -> Batch:
    pixels = torch.rand(size, 784, generator=chance)
    return Batch((pixels,), pixels)


def token_loss(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def vae_loss(output: tuple[Tensor, Tensor, Tensor], pixels: Tensor) -> Tensor:
    """Return what the decoder got wrong, and how far the codes are from a standard normal distribution."""
    drawn, mean, log_variance = output
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return F.binary_cross_entropy(drawn, pixels, reduction="sum") + divergence


def tiny() -> nn.Module:
    """Return a network for tests: microseconds of work, with a convolution and a normalization in it."""
    layers = [nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 10))


def vision(name: str, network: Callable[[], nn.Module]) -> Workload:
    return Workload(name, network, images, F.cross_entropy)


ALL = (
    vision("resnet18", partial(resnet, (2, 2, 2, 2), bottleneck=False)),
    vision("resnet50", partial(resnet, (3, 4, 6, 3), bottleneck=True)),
    vision("resnet101", partial(resnet, (3, 4, 23, 3), bottleneck=True)),
    vision("resnet152", partial(resnet, (3, 8, 36, 3), bottleneck=True)),
    vision("mobilenet_v2", mobilenet_v2),
    vision("vgg11", partial(vgg, (1, 1, 2, 2, 2))),
    vision("vgg16", partial(vgg, (2, 2, 3, 3, 3))),
    vision("vgg19", partial(vgg, (2, 2, 4, 4, 4))),
    vision("alexnet", alexnet),
    vision("googlenet", googlenet),
    vision("densenet121", densenet121),
    vision("squeezenet", squeezenet),
    Workload("bert_base", Bert, sentences, F.cross_entropy),
    Workload("transformer", Transformer, running_text, token_loss, likeliest),
    Workload("seq2seq", Seq2Seq, translations, token_loss, likeliest),
    Workload("superres", SuperResolution, luminances, F.mse_loss),
    Workload("vae", Vae, digits, vae_loss),
    Workload("tiny", tiny, partial(images, side=16, classes=10), F.cross_entropy),
)
NAMES = tuple(work.name for work in ALL)


def build(name: str) -> Workload:
    for work in ALL:
        if work.name == name:
            return work
    close = "".join(f"; did you mean {near!r}?" for near in get_close_matches(name, NAMES, n=1))
    raise ValueError(f"model: expected one of {', '.join(NAMES)}{close} (got {name!r})")
