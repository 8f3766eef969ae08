"""A tokenizer as Hugging Face's library reads it: it is fitted to a model, and knows which texts it refuses.

The library does its work in threads of its own and without Python's lock; only what comes out is made into
Python's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra
from astrarium.server.contract import Kind, Refused
from astrarium.server.control.texts.excerpt import beginning, end
from astrarium.server.control.texts.token_inputs import TokenInputs
from astrarium.server.control.texts.tokenizer_threads import library_threads
from astrarium.serving.live.backends.blame import first_sentence

Text = tuple[bytes, ...]  # or a pair
# Bytes for each token that is kept: texts have three to six, so that a long one can be cut before it costs.
# Where that gives too few tokens (it is mostly spaces, say), so many times more is looked at, and no further.
GENEROUS = 16
FURTHER = 16
_PADS = ("[PAD]", "<pad>", "<|pad|>")


class Tokenizer:
    """A tokenizer cuts texts to what a model takes, and fills up what is too short for it."""

    def __init__(self, file: str, inputs: TokenInputs, field: str) -> None:
        self.inputs = inputs
        self._library = _read(file, field)
        self._padding = _padding(self._library)
        self._from_end = (self._library.truncation or {}).get("direction") == "left"
        self._fit(field)

    def _fit(self, field: str) -> None:
        """Cut at the model's longest text, whatever the file says, and never fill up by itself."""
        longest = self.inputs.longest
        needed = self._library.num_special_tokens_to_add(False) + 1
        if longest < needed:
            expected = f"at least {needed} tokens: the tokenizer adds {needed - 1} of its own"
            raise InputError(f"{field}.longest", longest, expected)
        self._check_vocabulary(field)
        self._library.no_padding()
        self._library.enable_truncation(longest, direction="left" if self._from_end else "right")

    def _check_vocabulary(self, field: str) -> None:
        """Refuse a tokenizer with tokens that the model has declared not to take."""
        values = self.inputs.tokens.values
        if values is None:
            return
        highest = max(self._library.get_vocab().values(), default=0)
        if highest > values[1]:
            expected = f"a tokenizer whose tokens end at {values[1]}, as those of {self.inputs.tokens.name}"
            raise InputError(f"{field}.tokenizer", f"one with token {highest}", expected)

    @property
    def from_end(self) -> bool:
        """Whether the end of a long text is kept, and not its beginning."""
        return self._from_end

    @property
    def most_bytes(self) -> int:
        """How much of a text is looked at."""
        return GENEROUS * FURTHER * self.inputs.longest

    def encode(self, texts: Sequence[Text]) -> list[Any]:
        """Return the encoding of each text, or what is wrong with it.

        Of a long text no more than `most_bytes` and one are needed.
        """
        results: list[Any] = [None] * len(texts)
        waiting = list(range(len(texts)))
        for most in (GENEROUS, GENEROUS * FURTHER):
            excerpts = {at: tuple(self._excerpt(part, most) for part in texts[at]) for at in waiting}
            for at, result in zip(excerpts, self._encoded(list(excerpts.values())), strict=True):
                results[at] = result
            waiting = [at for at in waiting if _ends_early(texts[at], excerpts[at], results[at])]
            if not waiting:
                break
        for at in waiting:
            results[at] = self._too_long()
        return [self._filled_up(result) for result in results]

    def _excerpt(self, text: bytes, most: int) -> bytes:
        return (end if self._from_end else beginning)(text, most * self.inputs.longest)

    def _encoded(self, texts: list[Text]) -> list[Any]:
        """Encode all at once; where that fails, each by itself, so that one pays for itself alone."""
        decoded = [_decoded(text) for text in texts]
        good = [text for text in decoded if not isinstance(text, Refused)]
        try:
            encodings = iter(self._together(good))
        except BaseException:  # what the library panics with is no Exception
            encodings = iter([self._alone(text) for text in good])
        return [text if isinstance(text, Refused) else next(encodings) for text in decoded]

    def _together(self, texts: list[Any]) -> list[Any]:
        encode = partial(self._library.encode_batch_fast, texts)
        encodings: list[Any] = encode() if len(texts) < 2 else library_threads.watched(encode)
        return encodings

    def _alone(self, text: Any) -> Any:
        try:
            return self._library.encode_batch_fast([text])[0]
        except BaseException as error:
            return Refused(Kind.BAD_REQUEST, f"its text cannot be tokenized: {first_sentence(error)}")

    def _too_long(self) -> Refused:
        most, tokens = self.most_bytes, self.inputs.longest
        reason = f"a text of more than {most} bytes, of which {most} have not even {tokens} tokens"
        return Refused(Kind.TOO_LARGE, reason)

    def _filled_up(self, encoding: Any) -> Any:
        """Fill up what is too short with the tokenizer's own token for that."""
        shortest = self.inputs.shortest
        if isinstance(encoding, Refused) or len(encoding.ids) >= shortest:
            return encoding
        if not encoding.ids:
            return Refused(Kind.BAD_REQUEST, "its text has no tokens")
        if self._padding is None or not self.inputs.pads:
            reason = f"its text has {len(encoding.ids)} tokens; the model takes {shortest} or more"
            return Refused(Kind.BAD_REQUEST, reason)
        encoding.pad(shortest, **self._padding)
        return encoding


def _read(file: str, field: str) -> Any:
    try:
        with from_extra("text"):
            import tokenizers
    except InputError as error:
        raise error.at(f"{field}.tokenizer") from None
    try:
        return tokenizers.Tokenizer.from_file(file)
    except Exception as error:
        expected = f"a tokenizer.json of Hugging Face's tokenizers; {first_sentence(error)}"
        raise InputError(f"{field}.tokenizer", file, expected) from None


def _padding(library: Any) -> dict[str, Any] | None:
    """Return what the tokenizer fills up with: as its file says, or its usual token for that."""
    stated = library.padding
    if stated is not None:
        return {name: stated[name] for name in ("direction", "pad_id", "pad_type_id", "pad_token")}
    known = [name for name in _PADS if library.token_to_id(name) is not None]
    return {"pad_id": library.token_to_id(known[0]), "pad_token": known[0]} if known else None


def _decoded(text: Text) -> Any:
    try:
        parts = [part.decode() for part in text]
    except UnicodeDecodeError as error:
        return Refused(Kind.BAD_REQUEST, f"its text is not UTF-8: {error.reason} at byte {error.start}")
    return parts[0] if len(parts) == 1 else tuple(parts)


def _ends_early(text: Text, excerpt: Text, encoding: Any) -> bool:
    """Whether more of a text than was looked at could have become tokens."""
    return excerpt != text and not isinstance(encoding, Refused) and not encoding.overflowing
