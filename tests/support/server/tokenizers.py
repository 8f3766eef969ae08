"""Tokenizers that are small enough to be made by a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "server", "takes", "a", "text", "of", "any", "length")


def word_tokenizer(special: bool = True, words: tuple[str, ...] = WORDS) -> Any:
    """Return a tokenizer of whole words, whose tokens are their places in *words*."""
    library = pytest.importorskip("tokenizers")
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    if special:
        tokenizer.post_processor = library.processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    return tokenizer


def saved(folder: Path, tokenizer: Any = None) -> str:
    path = str(folder / "tokenizer.json")
    (tokenizer or word_tokenizer()).save(path)
    return path
