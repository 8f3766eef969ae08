"""Tokenizers are fitted to the inputs of models; a model that is loaded anew may need another one.

Each has a number, by which network threads and the queue of texts know it.
"""

from __future__ import annotations

from dataclasses import dataclass

from astrarium.server.control.texts.token_inputs import token_inputs
from astrarium.server.control.texts.tokenizer import Tokenizer
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.scenario.tokenization import Tokenization

Specs = tuple[TensorSpec, ...]


@dataclass
class _Loaded:
    number: int
    tokenizer: Tokenizer


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

    def renew(self, model: int) -> None:
        """Let a model's tokenizer be read again, as another one: its file may have changed."""
        self._numbers = {fit: number for fit, number in self._numbers.items() if fit[0] != model}

    def fit(self, model: int, inputs: Specs) -> None:
        """Load the tokenizer of a model, if it has one; InputError where it is none for these inputs."""
        if model in self._choices:
            self.of(self.number(model, inputs))

    def of(self, number: int) -> Tokenizer:
        """Return a tokenizer; InputError where it cannot be loaded, or does not fit."""
        model, inputs = self._fits[number]
        loaded = self._loaded.get(model)
        if loaded is None or loaded.number != number:
            loaded = self._loaded[model] = _Loaded(number, self._load(model, inputs))
        return loaded.tokenizer

    def _load(self, model: int, inputs: Specs) -> Tokenizer:
        choice, field = self._choices[model]
        tokenizer = Tokenizer(choice.tokenizer, token_inputs(choice, inputs, field), field)
        tokenizer.encode([(b"warm",)])
        return tokenizer
