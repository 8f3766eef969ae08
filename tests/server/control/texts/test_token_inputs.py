"""Which inputs of a model a tokenizer fills, and what is said where that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.server.control.texts.token_inputs import token_inputs
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.scenario.tokenization import Tokenization

FIELD = "models.m.preprocess"


def whole(name: str, size: int = -1) -> TensorSpec:
    return TensorSpec(name, "INT64", (size,))


def parts(*specs: TensorSpec, **options: Any) -> dict[str, str]:
    options = {"longest": 8, **options}
    made = token_inputs(Tokenization("t.json", **options), specs, FIELD)
    return {spec.name: part for spec, part in made.filled}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["input_ids"], ["ids"]),
        (["attention_mask", "input_ids"], ["attention_mask", "ids"]),
        (["input_ids", "token_type_ids", "attention_mask"], ["ids", "type_ids", "attention_mask"]),
        (["TOKENS", "TYPES", "MASK"], ["ids", "type_ids", "attention_mask"]),
        (["INPUT_IDS"], ["ids"]),
        (["words"], ["ids"]),
        (["words", "attention_mask"], ["ids", "attention_mask"]),
    ],
)
def test_inputs_are_found_by_their_usual_names(names: list[str], expected: list[str]) -> None:
    assert parts(*map(whole, names)) == dict(zip(names, expected, strict=True))


def test_what_is_stated_wins() -> None:
    made = parts(whole("a"), whole("b"), whole("input_ids"), tokens="a", types="b", mask="input_ids")
    assert made == {"a": "ids", "b": "type_ids", "input_ids": "attention_mask"}


@pytest.mark.parametrize(
    ("specs", "options", "field", "expected"),
    [
        ([whole("a"), whole("b")], {}, FIELD, "nothing makes a"),
        ([whole("input_ids"), whole("positions")], {}, FIELD, "nothing makes positions"),
        ([whole("mask")], {}, f"{FIELD}.tokens", "the input that takes the tokens: one of mask"),
        ([whole("a")], {"tokens": "b"}, f"{FIELD}.tokens", "one of a"),
        ([whole("a"), whole("b")], {"tokens": "a", "types": "a"}, f"{FIELD}.types", "one of b"),
        ([TensorSpec("a", "FP32", (-1,))], {}, FIELD, "whole numbers, such as INT64"),
        ([TensorSpec("a", "INT64", (-1, 2))], {}, FIELD, "one dimension"),
        (
            [whole("a")],
            {"longest": None},
            f"{FIELD}.longest",
            'a range in the shape of the input, such as ["1..512"]',
        ),
        ([whole("a", 8)], {"longest": 9}, f"{FIELD}.longest", "from 8 to 8 tokens"),
        ([whole("a", 8)], {"longest": 7}, f"{FIELD}.longest", "from 8 to 8 tokens"),
    ],
)
def test_what_does_not_fit_is_named(
    specs: list[TensorSpec], options: dict[str, Any], field: str, expected: str
) -> None:
    with pytest.raises(InputError) as caught:
        parts(*specs, **options)
    assert caught.value.field == field
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "longest", "lengths"),
    [
        (whole("a"), 8, (1, 8)),
        (whole("a", 6), None, (6, 6)),
        (whole("a", 6), 6, (6, 6)),
        (TensorSpec("a", "INT64", (-1,), ranges=((2, 6),)), None, (2, 6)),
        (TensorSpec("a", "INT64", (-1,), ranges=((2, 6),)), 4, (2, 4)),
    ],
)
def test_lengths_are_those_of_the_inputs(
    spec: TensorSpec, longest: int | None, lengths: tuple[int, int]
) -> None:
    made = token_inputs(Tokenization("t.json", longest=longest), [spec], FIELD)
    assert (made.shortest, made.longest) == lengths
