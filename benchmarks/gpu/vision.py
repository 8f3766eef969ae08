"""Well-known image networks in plain PyTorch, with the layers and the parameter counts of their papers.

Weights are PyTorch's default random ones: they take as long as trained ones. Auxiliary heads are left out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody writes it)
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
        self.mean = nn.Linear(hidden, code)
        self.log_variance = nn.Linear(hidden, code)
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, 784), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean = self.mean(hidden)
        log_variance = self.log_variance(hidden)
        spread = torch.exp(0.5 * log_variance)
        code = mean + spread * torch.randn_like(spread) if self.training else mean
        return self.decoder(code), mean, log_variance


def conv_norm(inward: int, outward: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution that keeps the size (at stride 1), and its batch normalization."""
    convolution = nn.Conv2d(inward, outward, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outward)]


def pooled(width: int, classes: int = 1000, dropout: float = 0.0) -> list[nn.Module]:
    """The usual end: the mean over the image, and one linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(width, classes)]


class Residual(nn.Module):
    """A block of ResNet (v1.5: the stride sits on the 3x3 convolution)."""

    def __init__(self, inward: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outward = width * 4 if bottleneck else width
        if bottleneck:
            layers = [*conv_norm(inward, width, 1), nn.ReLU(inplace=True)]
            layers += [*conv_norm(width, width, 3, stride), nn.ReLU(inplace=True)]
            layers += conv_norm(width, outward, 1)
        else:
            layers = [*conv_norm(inward, width, 3, stride), nn.ReLU(inplace=True)]
            layers += conv_norm(width, width, 3)
        self.body = nn.Sequential(*layers)
        same = stride == 1 and inward == outward
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_norm(inward, outward, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet(depths: tuple[int, int, int, int], bottleneck: bool) -> nn.Module:
    layers = [*conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inward = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            layers.append(Residual(inward, width, stride, bottleneck))
            inward = width * 4 if bottleneck else width
    return nn.Sequential(*layers, *pooled(inward))


class Inverted(nn.Module):
    """A block of MobileNetV2: widen, one filter a channel, narrow; added to its input where shapes agree."""

    def __init__(self, inward: int, outward: int, stride: int, widening: int) -> None:
        super().__init__()
        hidden = inward * widening
        layers = [*conv_norm(inward, hidden, 1), nn.ReLU6(inplace=True)] if widening > 1 else []
        layers += [*conv_norm(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6(inplace=True)]
        self.body = nn.Sequential(*layers, *conv_norm(hidden, outward, 1))
        self.same = stride == 1 and inward == outward

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.same else self.body(x)


# Widening, channels, blocks, stride of the first: Table 2 of Sandler et al., MobileNetV2 (2018).
MOBILE_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2() -> nn.Module:
    layers = [*conv_norm(3, 32, 3, 2), nn.ReLU6(inplace=True)]
    inward = 32
    for widening, outward, blocks, first_stride in MOBILE_STAGES:
        for block in range(blocks):
            layers.append(Inverted(inward, outward, 1 if block else first_stride, widening))
            inward = outward
    return nn.Sequential(
        *layers, *conv_norm(inward, 1280, 1), nn.ReLU6(inplace=True), *pooled(1280, dropout=0.2)
    )


def vgg(convolutions: tuple[int, int, int, int, int]) -> nn.Module:
    """Five stages of 3x3 convolutions and the three large linear layers (Simonyan and Zisserman, 2014)."""
    layers: list[nn.Module] = []
    inward = 3
    for count, width in zip(convolutions, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(inward, width, 3, padding=1), nn.ReLU(inplace=True)]
            inward = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), *dense_end(512 * 49, 4096, before=False))


def dense_end(inward: int, width: int, before: bool) -> list[nn.Module]:
    """Three linear layers with dropout: before each of the first two (AlexNet), or after (VGG)."""
    layers: list[nn.Module] = [nn.Flatten()]
    for size in (inward, width):
        block = [nn.Linear(size, width), nn.ReLU(inplace=True)]
        layers += [nn.Dropout(), *block] if before else [*block, nn.Dropout()]
    return [*layers, nn.Linear(width, 1000)]


def alexnet() -> nn.Module:
    """The one-tower form (Krizhevsky, 2014), as most libraries have it."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)]
    layers += [nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)]
    for inward, outward in ((192, 384), (384, 256), (256, 256)):
        layers += [nn.Conv2d(inward, outward, 3, padding=1), nn.ReLU(inplace=True)]
    layers += [nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(6)]
    return nn.Sequential(*layers, *dense_end(256 * 36, 4096, before=True))


class Branches(nn.Module):
    """Several ways through, side by side, joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def fire(inward: int, squeeze: int, expand: int) -> nn.Module:
    """SqueezeNet's block: narrow, then 1x1 and 3x3 side by side."""
    pointwise = nn.Sequential(nn.Conv2d(squeeze, expand, 1), nn.ReLU(inplace=True))
    three = nn.Sequential(nn.Conv2d(squeeze, expand, 3, padding=1), nn.ReLU(inplace=True))
    return nn.Sequential(nn.Conv2d(inward, squeeze, 1), nn.ReLU(inplace=True), Branches(pointwise, three))


def squeezenet() -> nn.Module:
    """SqueezeNet 1.1 (Iandola et al., 2016)."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2), nn.ReLU(inplace=True), small_pool()]
    layers += [fire(64, 16, 64), fire(128, 16, 64), small_pool()]
    layers += [fire(128, 32, 128), fire(256, 32, 128), small_pool()]
    layers += [fire(256, 48, 192), fire(384, 48, 192), fire(384, 64, 256), fire(512, 64, 256)]
    end = [
        nn.Dropout(),
        nn.Conv2d(512, 1000, 1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, *end)


def small_pool() -> nn.Module:
    return nn.MaxPool2d(3, 2, ceil_mode=True)


def inception(inward: int, widths: tuple[int, int, int, int, int, int]) -> nn.Module:
    """GoogLeNet's block: 1x1, 3x3, 5x5 (as 3x3, like the published weights) and a pooled way."""
    narrow1, narrow3, wide3, narrow5, wide5, after_pool = widths
    return Branches(
        nn.Sequential(*relu_conv(inward, narrow1, 1)),
        nn.Sequential(*relu_conv(inward, narrow3, 1), *relu_conv(narrow3, wide3, 3)),
        nn.Sequential(*relu_conv(inward, narrow5, 1), *relu_conv(narrow5, wide5, 3)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), *relu_conv(inward, after_pool, 1)),
    )


def relu_conv(inward: int, outward: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [*conv_norm(inward, outward, kernel, stride), nn.ReLU(inplace=True)]


# Widths of the nine blocks: Table 1 of Szegedy et al., Going deeper with convolutions (2014).
INCEPTIONS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def googlenet() -> nn.Module:
    layers = [*relu_conv(3, 64, 7, 2), small_pool(), *relu_conv(64, 64, 1), *relu_conv(64, 192, 3)]
    inward = 192
    for stage in INCEPTIONS:
        layers.append(small_pool())
        for widths in stage:
            layers.append(inception(inward, widths))
            inward = widths[0] + widths[2] + widths[4] + widths[5]
    return nn.Sequential(*layers, *pooled(inward, dropout=0.2))


class DenseLayer(nn.Module):
    """DenseNet's layer: what it makes is appended to what it was given."""

    def __init__(self, inward: int, growth: int) -> None:
        super().__init__()
        narrow = [nn.BatchNorm2d(inward), nn.ReLU(inplace=True), nn.Conv2d(inward, 4 * growth, 1, bias=False)]
        wide = [nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True)]
        wide.append(nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False))
        self.body = nn.Sequential(*narrow, *wide)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], dim=1)


def densenet121(growth: int = 32) -> nn.Module:
    layers = [*relu_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for stage, depth in enumerate((6, 12, 24, 16)):
        if stage:
            layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
        layers += [DenseLayer(width + i * growth, growth) for i in range(depth)]
        width += depth * growth
    return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(inplace=True), *pooled(width))
