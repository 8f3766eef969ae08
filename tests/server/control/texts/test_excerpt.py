"""The part of a long text that its tokens are made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.server.control.texts.excerpt import beginning, end


@pytest.mark.parametrize(
    ("text", "most", "first", "last"),
    [
        ("one two", 7, "one two", "one two"),
        ("one two three", 9, "one two", "three"),
        ("a threehundred", 8, "a threeh", "ehundred"),  # words are long: within one
        ("ööööö", 5, "öö", "öö"),  # of two bytes each
    ],
)
def test_long_texts_are_cut_between_words_or_characters(text: str, most: int, first: str, last: str) -> None:
    assert beginning(text.encode(), most).decode() == first
    assert end(text.encode(), most).decode() == last


@given(st.text(), st.integers(4, 40))
def test_an_excerpt_is_a_text_and_a_part(text: str, most: int) -> None:
    whole = text.encode()
    first, last = beginning(whole, most), end(whole, most)
    assert len(first) <= most
    assert len(last) <= most
    assert text.startswith(first.decode())
    assert text.endswith(last.decode())
