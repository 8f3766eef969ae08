"""Tokenizers are fitted to the inputs of models; a model that is loaded anew may need another one.

Each has a number, by which network threads and the queue of texts know it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from astrarium.server.control.texts.token_inputs import token_inputs
from astrarium.server.control.texts.tokenizer import Tokenizer
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.scenario.tokenization import Tokenization

Specs = tuple[TensorSpec, ...]


Stamp = tuple[int, int]  # when a file was written, and its size


@dataclass
class _Loaded:
    number: int
    tokenizer: Tokenizer
    stamp: Stamp | None  # of its file; None: nobody could look


class FittedTokenizers:
    """Fitted tokenizers are loaded when they are first needed, and one of each model is kept."""

    def __init__(self) -> None:
        self._choices: dict[int, tuple[Tokenization, str]] = {}  # by model, with the field that says so
        self._numbers: dict[tuple[int, Specs], int] = {}
        self._fits: list[tuple[int, Specs]] = []  # by number
        self._loaded: dict[int, _Loaded] = {}  # by model

    def __len__(self) -> int:
        return len(self._choices)

    def add(self, model: int, choice: Tokenization, field: str) -> None:
        """Let a model have a tokenizer."""
        self._choices[model] = choice, field

    def number(self, model: int, inputs: Specs) -> int:
        """Return the number of the tokenizer for a model with these inputs."""
        fit = model, inputs
        if fit not in self._numbers:
            self._fits.append(fit)
            self._numbers[fit] = len(self._fits) - 1
        return self._numbers[fit]

    def changed(self, model: int, inputs: Specs) -> Tokenizer | None:
        """Return the tokenizer of a model, read again, or None if it has none or its file is as it was."""
        loaded = self._loaded.get(model)
        if loaded is None or loaded.stamp == _stamp(self._choices[model][0].tokenizer):
            return None
        return self._load(model, inputs)

    def renew(self, model: int, inputs: Specs, tokenizer: Tokenizer) -> None:
        """Let a model have this tokenizer from now on, as another one."""
        self._numbers = {fit: number for fit, number in self._numbers.items() if fit[0] != model}
        stamp = _stamp(self._choices[model][0].tokenizer)
        self._loaded[model] = _Loaded(self.number(model, inputs), tokenizer, stamp)

    def fit(self, model: int, inputs: Specs) -> None:
        """Load the tokenizer of a model, if it has one; InputError where it is none for these inputs."""
        if model in self._choices:
            self.of(self.number(model, inputs))

    def of(self, number: int) -> Tokenizer:
        """Return a tokenizer; InputError where it cannot be loaded, or does not fit."""
        model, inputs = self._fits[number]
        loaded = self._loaded.get(model)
        if loaded is None or loaded.number != number:
            stamp = _stamp(self._choices[model][0].tokenizer)
            loaded = self._loaded[model] = _Loaded(number, self._load(model, inputs), stamp)
        return loaded.tokenizer

    def _load(self, model: int, inputs: Specs) -> Tokenizer:
        choice, field = self._choices[model]
        tokenizer = Tokenizer(choice.tokenizer, token_inputs(choice, inputs, field), field)
        tokenizer.encode([(b"warm",)])
        return tokenizer


def _stamp(file: str) -> Stamp | None:
    try:
        known = os.stat(file)  # noqa: PTH116 (no object for each look)
    except OSError:
        return None
    return known.st_mtime_ns, known.st_size
