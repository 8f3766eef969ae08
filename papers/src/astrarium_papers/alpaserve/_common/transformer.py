"""The authors' BERT models from their sizes alone: what a part computes tells its share of the time."""

from __future__ import annotations

from typing import NamedTuple

WORDS = 51_200  # of the vocabulary
LENGTH = 2048  # of a text
BYTES = 2  # of a number, in half precision


class Part(NamedTuple):
    operations: int  # for each token
    weights: int  # numbers, without biases and norms, which are little


class Architecture(NamedTuple):
    layers: int
    width: int

    def parts(self) -> list[Part]:
        """Return attention and the two products of each layer, then the head. The embedding only looks up."""
        square = self.width**2
        attention = Part(8 * square + 4 * LENGTH * self.width, 4 * square)
        products = Part(16 * square, 8 * square)
        return [*(attention, products) * self.layers, Part(2 * WORDS * self.width, WORDS * self.width)]

    def shares(self) -> list[float]:
        """Return the share of the time of each part."""
        counted = [part.operations for part in self.parts()]
        return [count / sum(counted) for count in counted]

    @property
    def weights(self) -> int:
        """Return the bytes of weights, with those of the embedding."""
        return BYTES * (sum(part.weights for part in self.parts()) + WORDS * self.width)


MODELS = {"bert-1.3b": Architecture(24, 2048), "bert-2.6b": Architecture(32, 2560)}


def by_hand(layers: int, stages: int) -> list[int]:
    """Return where stages begin and end among the parts, if each has as many layers; the head goes with the
    last."""
    parts = 2 * layers // stages
    return [*range(0, 2 * layers, parts), 2 * layers + 1]
