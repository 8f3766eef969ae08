"""Reasons of policies name apps; the names that somebody may not see are taken out of them."""

from __future__ import annotations

import re
from collections.abc import Iterable


class HiddenNames:
    """Names that somebody may not see are taken out of what policies say; they stand there as words of their
    own. A name of several words, or with marks of a sentence in it, is looked for as a whole."""

    OTHER = "another team's app"
    _BETWEEN = re.compile(r"([\s;,:()]+)")

    def __init__(self, names: Iterable[str]) -> None:
        self._words = set[str]()
        self._whole = list[str]()
        for name in names:
            if self._BETWEEN.search(name) or name.endswith("."):
                self._whole.append(name)
            else:
                self._words.add(name)
        self._whole.sort(key=len, reverse=True)

    def hidden(self, reason: str) -> str:
        if not (self._words or self._whole):
            return reason
        shown = reason.partition("; given to ")[0]
        for name in self._whole:
            shown = shown.replace(name, self.OTHER)
        words = "".join(self._word(word) for word in self._BETWEEN.split(shown))
        return words.replace(f"app {self.OTHER}", "app")

    def _word(self, word: str) -> str:
        plain = word.rstrip(".")
        known = word in self._words or plain in self._words
        return self.OTHER + word[len(plain) :] if known else word
