"""Which inputs of a model a tokenizer fills, and how many tokens they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from astrarium.core.errors import InputError, one_of
from astrarium.server.contract import Kind, Refused
from astrarium.serving.live.tensors import DATATYPES, Tensor, TensorSpec, to_bytes
from astrarium.serving.scenario.tokenization import Tokenization

# What the library calls a part of an encoding, and what inputs are called that take it: in models exported by
# Hugging Face, and in upper case, as the protocol's examples have it.
_TOKENS, _TYPES, _MASK = "ids", "type_ids", "attention_mask"
_USUAL = {
    _TOKENS: ("input_ids", "tokens"),
    _TYPES: ("token_type_ids", "types"),
    _MASK: ("attention_mask", "mask"),
}
_OPTIONS = {_TOKENS: "tokens", _TYPES: "types", _MASK: "mask"}
_WHOLE = ("INT", "UINT")
Numbers = list[list[int]]  # for each input of a model


@dataclass(frozen=True)
class TokenInputs:
    """A model's inputs, in its order, with what fills them, and the fewest and the most tokens."""

    filled: tuple[tuple[TensorSpec, str], ...]
    shortest: int
    longest: int

    def numbers(self, encoding: Any) -> Numbers | Refused:
        """Return what the model's inputs are for one text; Refused where it does not take that."""
        numbers = [getattr(encoding, part) for _, part in self.filled]
        for (spec, _), (low, high), row in zip(self.filled, self._bounds, numbers, strict=True):
            if row and (min(row) < low or max(row) > high):
                taken = f"{spec.name} takes numbers from {low} to {high}"
                reason = f"its tokenizer made a token that the model does not take: {taken}"
                return Refused(Kind.MODEL_FAILED, reason)
        return numbers

    def tensors(self, numbers: Numbers) -> list[Tensor]:
        pairs = zip(self.filled, numbers, strict=True)
        return [self._tensor(spec, row) for (spec, _), row in pairs]

    @staticmethod
    def _tensor(spec: TensorSpec, numbers: Sequence[int]) -> Tensor:
        array = np.array([numbers], DATATYPES[spec.datatype])
        return Tensor(spec.name, spec.datatype, array.shape, to_bytes(array))

    @cached_property
    def _bounds(self) -> list[tuple[int, int]]:
        return [_bounds(spec) for spec, _ in self.filled]

    @property
    def pads(self) -> bool:
        """Whether a text may be filled up: the model is told, by a mask, or takes nothing but one size."""
        return self.shortest == self.longest or any(part == _MASK for _, part in self.filled)

    @property
    def tokens(self) -> TensorSpec:
        return next(spec for spec, part in self.filled if part == _TOKENS)


def _bounds(spec: TensorSpec) -> tuple[int, int]:
    """Return the lowest and the highest number that an input takes."""
    info = np.iinfo(DATATYPES[spec.datatype])
    low, high = spec.values or (info.min, info.max)
    return max(int(info.min), int(low)), min(int(info.max), int(high))


def token_inputs(choice: Tokenization, specs: Sequence[TensorSpec], field: str) -> TokenInputs:
    """Return how a model's inputs are filled; InputError where one is left over, or takes no tokens."""
    parts = _parts(choice, specs, field)
    for spec in specs:
        if spec.name not in parts:
            expected = f"a model whose inputs a tokenizer fills: nothing makes {spec.name}"
            raise InputError(field, choice.tokenizer, expected)
        _check_input(spec, field)
    filled = tuple((spec, parts[spec.name]) for spec in specs)
    if _TOKENS not in parts.values():
        expected = f"the input that takes the tokens: {one_of([spec.name for spec in specs])}"
        raise InputError(f"{field}.tokens", choice.tokens, expected)
    return TokenInputs(filled, *_lengths(choice, specs, field))


def _parts(choice: Tokenization, specs: Sequence[TensorSpec], field: str) -> dict[str, str]:
    """Return what fills each input: as stated, else by its usual name, else as the only one that is left."""
    names = [spec.name for spec in specs]
    parts = _stated_parts(choice, names, field)
    for part in _USUAL.keys() - parts.values():
        usual = [name for name in names if name.lower() in _USUAL[part] and name not in parts]
        if usual:
            parts[usual[0]] = part
    left = [name for name in names if name not in parts]
    if _TOKENS not in parts.values() and len(left) == 1:
        parts[left[0]] = _TOKENS
    return parts


def _stated_parts(choice: Tokenization, names: list[str], field: str) -> dict[str, str]:
    stated = {_TOKENS: choice.tokens, _TYPES: choice.types, _MASK: choice.mask}
    parts: dict[str, str] = {}
    for part, name in stated.items():
        if name is None:
            continue
        free = [one for one in names if one not in parts]
        if name not in free:
            raise InputError(f"{field}.{_OPTIONS[part]}", name, one_of(free))
        parts[name] = part
    return parts


def _check_input(spec: TensorSpec, field: str) -> None:
    if not spec.datatype.startswith(_WHOLE):
        raise InputError(field, f"{spec.name} of {spec.datatype}", "inputs of whole numbers, such as INT64")
    if len(spec.shape) != 1:
        expected = "inputs of one dimension, the tokens, such as [-1]"
        raise InputError(field, f"{spec.name} of shape {list(spec.shape)}", expected)


def _lengths(choice: Tokenization, specs: Sequence[TensorSpec], field: str) -> tuple[int, int]:
    """Return the fewest tokens and the most that every input takes."""
    declared = [_declared(spec) for spec in specs]
    shortest = max(low for low, _ in declared)
    most = min((high for _, high in declared if high is not None), default=None)
    longest = choice.longest or most
    if longest is None:
        expected = 'a number to which texts are cut, or a range in the shape of the input, such as ["1..512"]'
        raise InputError(f"{field}.longest", None, expected)
    if longest < shortest or (most is not None and longest > most):
        expected = f"from {shortest} to {most or 'any number of'} tokens, as the model's inputs say"
        raise InputError(f"{field}.longest", longest, expected)
    return shortest, longest


def _declared(spec: TensorSpec) -> tuple[int, int | None]:
    """Return the fewest tokens and the most that an input's shape allows."""
    return spec.sizes_of(0) or (1, None)
