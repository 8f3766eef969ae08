"""An excerpt is the part of a long text that its tokens are made of: the rest would be cut off."""

from __future__ import annotations

_CONTINUES, _CONTINUED = 0xC0, 0x80  # the two highest bits of a byte within a character of UTF-8


def beginning(text: bytes, most: int) -> bytes:
    """Return at most so many bytes from a text's beginning, to the end of a word where words are short."""
    if len(text) <= most:
        return text
    cut = text[:most]
    words = cut.rsplit(None, 1)
    if len(words) > 1 and len(words[0]) > most // 2:
        return words[0]
    while most and text[most] & _CONTINUES == _CONTINUED:
        most -= 1
    return text[:most]


def end(text: bytes, most: int) -> bytes:
    """Return at most so many bytes from a text's end, from a word's beginning where words are short."""
    if len(text) <= most:
        return text
    at = len(text) - most
    words = text[at:].split(None, 1)
    if len(words) > 1 and len(words[1]) > most // 2:
        return words[1]
    while at < len(text) and text[at] & _CONTINUES == _CONTINUED:
        at += 1
    return text[at:]
