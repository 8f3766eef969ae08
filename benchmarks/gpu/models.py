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
from language import Bert, Seq2Seq, Transformer
from torch import Tensor, nn
from vision import alexnet, densenet121, googlenet, mobilenet_v2, resnet, squeezenet, vgg
from vision_small import SuperResolution, Vae

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
        """A fresh network, made where it will live; the same seed gives the same random weights."""
        on_gpu = torch.device(device).type == "cuda"
        with torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else []), torch.device(device):
            torch.manual_seed(seed)
            return self.network()

    def batch(self, size: int, device: Device = "cpu", seed: int = 0) -> Batch:
        """Made on the CPU, so that all devices see the same numbers."""
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
    """What the decoder got wrong, and how far the codes are from a standard normal distribution."""
    drawn, mean, log_variance = output
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return F.binary_cross_entropy(drawn, pixels, reduction="sum") + divergence


def tiny() -> nn.Module:
    """For tests: a few microseconds of work with a convolution and a normalization in it."""
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
