"""The form `preprocess: {tokenizer: tokenizer.json}`: clients send texts, the server makes tokens of them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.core.errors import InputError
from astrarium.serving.scenario.tensor_entries import Name, TensorEntry

TEXT = TensorEntry(name="TEXT", datatype="BYTES", shape=(1,))
_MOST_TEXTS = 2  # a tokenizer knows one text, or a pair


class Tokenization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tokenizer's file, and the model's inputs that it fills; those that are not named are found by theirs.

    Texts are cut to `longest` tokens; without it, to what the model's input declares.
    """

    tokenizer: Name
    tokens: Name | None = None
    types: Name | None = None
    mask: Name | None = None
    longest: Annotated[int, msgspec.Meta(ge=1)] | None = None


def check_texts(accepts: tuple[TensorEntry, ...], field: str) -> None:
    """Check that what clients send to a tokenizer is one text, or a pair."""
    if len(accepts) > _MOST_TEXTS:
        expected = "one text, or two that the tokenizer joins to a pair"
        raise InputError(field, [tensor.name for tensor in accepts], expected)
    for place, tensor in enumerate(accepts):
        if tensor.datatype != "BYTES":
            raise InputError(f"{field}[{place}].datatype", tensor.datatype, "BYTES: a tokenizer takes texts")
        if tensor.shape not in ((), (1,)):
            raise InputError(f"{field}[{place}].shape", list(tensor.shape), "[1]: one text a row")
