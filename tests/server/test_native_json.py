"""Native code reads and writes the JSON of large requests as Python does that of small ones."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from astrarium.core.optional import extension
from astrarium.server.contract import Refused
from astrarium.server.http import json_outline, json_tensors
from astrarium.server.protocol.checking import CheckedTensor
from astrarium.serving.live.tensors import (
    DATATYPES,
    Tensor,
    TensorSpec,
    pack_bytes,
    to_bytes,
)

pytestmark = pytest.mark.skipif(extension("_tensors") is None, reason="needs the native extension")


def placed(datatype: str, shape: tuple[int, ...]) -> CheckedTensor:
    return CheckedTensor(TensorSpec("IN", datatype, (-1,) * (len(shape) - 1)), shape, int(np.prod(shape)), 0)


def both_ways(text: str, datatype: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    answers: list[Any] = []
    for bound in (1 << 30, 0):  # small is Python's, large is native
        monkeypatch.setattr(json_tensors, "LARGE", bound)
        try:
            answers.append(
                json_tensors.from_json(
                    msgspec.Raw(text.encode("utf-8", "surrogatepass")), placed(datatype, shape), "m"
                )
            )
        except Refused:
            answers.append(Refused)
    return answers


NUMBER_TEXTS = (
    "0 7 2.0 1e2 -3 255 256 -129 70000 1.5 1e-400 4e-324 1e400 9007199254740993 18446744073709551615 3e38 "
    '1e39 65520 01 +1 1. .5 - NaN null true false "a" [1]'
)


@pytest.mark.parametrize("datatype", [kind for kind in DATATYPES if kind != "BYTES"])
def test_numbers_mean_the_same_small_and_large(datatype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in NUMBER_TEXTS.split():
        python, native = both_ways(f"[ {number} ,1 ]", datatype, (1, 2), monkeypatch)
        assert python == native, number
    for text in (
        "[[1,0],[1,1]]",
        "[1,0,1,1]",
        "[[1,0],[1]]",
        "[[1,0,1,1]]",
        "[1,0,1]",
        "[1,0,1,1,0]",
        "[]",
        "[1,0,1,1",
        "[1,0,1,1]]",
    ):
        assert len(set(both_ways(text, datatype, (2, 2), monkeypatch))) == 1, text


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "é😀", r"\u00e9\ud83d\ude00", r"\"\\\/\b\f\n\r\t", r"\ud83d", r"\ude00", r"\ud83dx", r"\x",
        r"\u12", "\x01", "\ud800", '"', "\\",
    ],
)  # fmt: skip
def test_texts_mean_the_same_small_and_large(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    python, native = both_ways(f'["{text}", "b"]', "BYTES", (1, 2), monkeypatch)
    assert python == native


@pytest.mark.parametrize("datatype", sorted(DATATYPES.keys() - {"BF16"}))
def test_answers_mean_the_same_small_and_large(datatype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(300) * 10.0 ** rng.integers(-4, 4, 300)
    array = np.abs(numbers).astype(DATATYPES[datatype])
    if datatype == "BYTES":
        array = np.array(["a", 'é"\\\n\x01', ""], object)
    if datatype[:2] == "FP":
        array[:3] = [np.nan, np.inf, 0]
    tensor = Tensor("OUT", datatype, array.shape, to_bytes(array))
    answers = []
    for bound in (1 << 30, -1):
        monkeypatch.setattr(json_tensors, "LARGE", bound)
        answers.append(msgspec.json.decode(msgspec.json.encode(json_tensors.to_json(tensor))))
    assert answers[0] == answers[1]


def test_a_large_answer_that_is_no_text_is_refused_like_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_tensors, "LARGE", 1)
    with pytest.raises(Refused, match=r"output OUT, element 1.*UTF-8"):
        json_tensors.to_json(Tensor("OUT", "BYTES", (2,), pack_bytes([b"a", b"\xff"])))


@pytest.mark.parametrize(
    ("text", "outline", "pieces"),
    [
        (b'{"inputs":[{"data":[1,[2,"]"]],"name":"a"},{"data" : "x\\"" }],"id":"b"}',
         b'{"inputs":[{"data":0,"name":"a"},{"data" : 1 }],"id":"b"}', [b'[1,[2,"]"]]', b'"x\\""']),
        (b'{"outputs":[{"data":[1]}],"data":[2]}', b'{"outputs":[{"data":[1]}],"data":[2]}', []),
        (b'{"inputs":7}', b'{"inputs":7}', []),
        (b'{"inputs":[{"parameters":{"data":[1]}}]}', b'{"inputs":[{"parameters":{"data":[1]}}]}', []),
    ],
)  # fmt: skip
def test_an_outline_has_all_but_the_elements(text: bytes, outline: bytes, pieces: list[bytes]) -> None:
    read = json_outline.outline(text)
    assert (read.text, [bytes(piece) for piece in read.pieces or ()]) == (outline, pieces)


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"inputs":[{"data":', b'{"inputs":[{"data":[1}]', b'{"a":1}}', b'{"a"', b"[]"]
)
def test_what_is_no_json_has_no_outline(text: bytes) -> None:
    with pytest.raises(Refused, match="JSON"):
        json_outline.outline(text)
