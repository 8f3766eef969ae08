"""What becomes of texts: tokens, or a refusal that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.server.contract import Kind, Refused
from astrarium.server.control.texts.token_inputs import token_inputs
from astrarium.server.control.texts.tokenizer import FURTHER, GENEROUS, Text, Tokenizer
from astrarium.serving.live.tensors import Tensor, TensorSpec, to_array
from astrarium.serving.scenario.tokenization import Tokenization
from tests.support.server.tokenizers import WORDS, saved, word_tokenizer

FIELD = "models.m.preprocess"
TOKENS = TensorSpec("input_ids", "INT64", (-1,))
LONGEST = 6


@pytest.fixture
def file(tmp_path: Path) -> str:
    return saved(tmp_path)


def fitted(file: str, *specs: TensorSpec, longest: int | None = LONGEST) -> Tokenizer:
    choice = Tokenization(file, longest=longest)
    return Tokenizer(file, token_inputs(choice, specs or (TOKENS,), FIELD), FIELD)


def ids(tokenizer: Tokenizer, *texts: Text) -> list[Any]:
    return [one if isinstance(one, Refused) else one.ids for one in tokenizer.encode(list(texts))]


def inputs_of(tokenizer: Tokenizer, encoding: Any) -> list[Tensor]:
    numbers = tokenizer.inputs.numbers(encoding)
    assert not isinstance(numbers, Refused)
    return tokenizer.inputs.tensors(numbers)


def test_texts_become_tokens_each_as_long_as_it_is(file: str) -> None:
    made = ids(fitted(file), (b"the server",), (b"",), (b"the server takes a text of any length",), (b"hm",))
    assert made == [[2, 4, 5, 3], [2, 3], [2, 4, 5, 6, 7, 3], [2, 1, 3]]


def test_what_the_file_says_of_lengths_is_not_ours(tmp_path: Path) -> None:
    own = word_tokenizer()
    own.enable_truncation(3)
    own.enable_padding(length=9)
    assert ids(fitted(saved(tmp_path, own)), (b"the server takes",)) == [[2, 4, 5, 6, 3]]


def test_the_end_of_a_text_is_kept_where_the_file_says_so(tmp_path: Path) -> None:
    own = word_tokenizer(special=False)
    own.enable_truncation(3, direction="left")
    tokenizer = fitted(saved(tmp_path, own), longest=2)
    assert ids(tokenizer, (b"the server takes a text",)) == [[7, 8]]
    assert ids(tokenizer, (b"the server " * 1000 + b"of any",)) == [[9, 10]]


def test_a_pair_is_joined_with_types(file: str) -> None:
    inputs = [TOKENS, TensorSpec("token_type_ids", "INT32", (-1,))]
    tokenizer = fitted(file, *inputs)
    [encoding] = tokenizer.encode([(b"the server", b"takes")])
    tokens, types = inputs_of(tokenizer, encoding)
    assert to_array(tokens).tolist() == [[2, 4, 5, 3, 6, 3]]
    assert to_array(types).tolist() == [[0, 0, 0, 0, 1, 1]]
    assert to_array(types).dtype == "int32"


def test_texts_are_filled_up_to_a_fixed_size_and_masked(file: str) -> None:
    tokenizer = fitted(
        file, TensorSpec("TOKENS", "INT64", (5,)), TensorSpec("MASK", "INT64", (5,)), longest=None
    )
    [encoding] = tokenizer.encode([(b"the",)])
    tokens, mask = map(to_array, inputs_of(tokenizer, encoding))
    assert tokens.tolist() == [[2, 4, 3, 0, 0]]
    assert mask.tolist() == [[1, 1, 1, 0, 0]]


def test_nothing_to_fill_up_with_is_said(tmp_path: Path) -> None:
    words = tuple(word.replace("[PAD]", "pad") for word in WORDS)
    tokenizer = fitted(
        saved(tmp_path, word_tokenizer(words=words)), TensorSpec("T", "INT64", (5,)), longest=None
    )
    [refused] = tokenizer.encode([(b"the",)])
    assert refused.kind is Kind.BAD_REQUEST
    assert "its text has 3 tokens; the model takes 5 or more" in refused.reason


def test_short_texts_are_filled_up_only_where_the_tokenizer_masks_them(file: str) -> None:
    tokens = TensorSpec("input_ids", "INT64", (-1,), ranges=((5, 8),))
    [refused] = fitted(file, tokens).encode([(b"the",)])
    assert refused.reason == "its text has 3 tokens; the model takes 5 or more"
    masked = fitted(file, tokens, TensorSpec("mask", "INT64", (-1,), ranges=((5, 8),)))
    [encoding] = masked.encode([(b"the",)])
    assert (encoding.ids, encoding.attention_mask) == ([2, 4, 3, 0, 0], [1, 1, 1, 0, 0])


def test_a_text_without_tokens_is_refused(tmp_path: Path) -> None:
    tokenizer = fitted(saved(tmp_path, word_tokenizer(special=False)))
    made = ids(tokenizer, (b"  ",), (b"the",))
    assert made[0].reason == "its text has no tokens"
    assert made[1] == [4]


def test_one_bad_text_is_no_others_business(file: str) -> None:
    made = ids(fitted(file), (b"the",), (b"the \xff",), (b"server",))
    assert (made[0], made[2]) == ([2, 4, 3], [2, 5, 3])
    assert made[1].kind is Kind.BAD_REQUEST
    assert made[1].reason == "its text is not UTF-8: invalid start byte at byte 4"


def test_one_that_the_library_breaks_on_is_no_others_business(tmp_path: Path) -> None:
    words = tuple(word.replace("[UNK]", "unknown") for word in WORDS)
    own = word_tokenizer(words=words)
    made = ids(fitted(saved(tmp_path, own)), (b"the",), (b"stranger",), (b"server",))
    assert (made[0], made[2]) == ([2, 4, 3], [2, 5, 3])
    assert made[1].kind is Kind.BAD_REQUEST
    assert "its text cannot be tokenized: WordLevel error" in made[1].reason


def test_a_long_text_has_the_tokens_that_it_would_have_whole(file: str) -> None:
    whole = word_tokenizer()
    whole.enable_truncation(LONGEST)
    spaced = b"the server" + b" " * GENEROUS * LONGEST + b"takes a text of any length"
    for text in (b"the server takes " * 10_000, spaced):
        assert ids(fitted(file), (text,)) == [whole.encode(text.decode()).ids]


def test_no_more_of_a_text_is_looked_at_than_could_matter(file: str) -> None:
    most = GENEROUS * FURTHER * LONGEST
    just, beyond = ids(fitted(file), (b" " * (most - 4) + b" the",), (b" " * most + b" the",))
    assert just == [2, 4, 3]
    assert beyond.kind is Kind.TOO_LARGE
    expected = f"a text of more than {most} bytes, of which {most} have not even {LONGEST} tokens"
    assert beyond.reason == expected


@pytest.mark.parametrize("body", ["", "{}", "no JSON"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, body: str) -> None:
    pytest.importorskip("tokenizers")
    file = tmp_path / "tokenizer.json"
    file.write_text(body)
    with pytest.raises(InputError, match=r"a tokenizer\.json of Hugging Face's tokenizers; ") as caught:
        fitted(str(file))
    assert (caught.value.field, caught.value.value) == (f"{FIELD}.tokenizer", str(file))


def test_tokens_beyond_the_models_values_are_noticed_at_once(file: str) -> None:
    with pytest.raises(InputError, match=r"a tokenizer whose tokens end at 10.*token 11"):
        fitted(file, TensorSpec("input_ids", "INT64", (-1,), values=(0, 10)))


def test_fewer_tokens_than_the_tokenizer_adds_are_no_length(file: str) -> None:
    with pytest.raises(InputError, match="at least 3 tokens: the tokenizer adds 2 of its own") as caught:
        fitted(file, longest=2)
    assert caught.value.field == f"{FIELD}.longest"
