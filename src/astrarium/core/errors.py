"""One family of errors, named after who is at fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

_LONGEST_NAME = 200  # characters; looking for what is close to a text takes as long as the text


class AstrariumError(Exception):
    """Root of every error this package raises on purpose."""


class InputError(AstrariumError):
    """What a person wrote cannot be used. Names the place, the value and what would be right."""

    def __init__(self, field: str, value: object, expected: str, source: str = "") -> None:
        self.field = field
        self.value = value
        self.expected = expected
        self.source = source
        super().__init__(field, value, expected, source)

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.source, self.field) if part)
        got = "" if self.value is None else f" (got {_shown(self.value)})"
        return f"{where}: expected {self.expected}{got}"

    def at(self, prefix: str) -> InputError:
        """The same error seen from one level further out."""
        field = ".".join(part for part in (prefix, self.field) if part)
        return InputError(field, self.value, self.expected, self.source)


class InvalidAction(AstrariumError):
    """A policy asked for something the present state does not allow: the policy's fault, ends the run."""


class BrokenBooks(AstrariumError):
    """The books contradict themselves: our fault."""


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number that is too long to be written, or lists too deep
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= 80 else text[:77] + "..."


def one_of(names: list[str], value: object = None) -> str:
    """'one of a, b, c; did you mean b?' for the expected part of an InputError."""
    return f"one of {', '.join(names)}{did_you_mean(names, value)}"


def did_you_mean(names: list[str], value: object) -> str:
    """'; did you mean b?' where a name is close, else nothing."""
    text = "" if value is None else str(value)
    close = get_close_matches(text, names, n=1) if 0 < len(text) <= _LONGEST_NAME else []
    return f"; did you mean {close[0]!r}?" if close else ""


@contextmanager
def read_from(source: object) -> Iterator[None]:
    """Name the source, such as a file, in errors about what it says: not in those about an option, -o."""
    try:
        yield
    except InputError as error:
        named = error.source or ("" if error.field.startswith("-") else str(source))
        raise InputError(error.field, error.value, error.expected, named) from None


@contextmanager
def written_in(field: str, value: object) -> Iterator[None]:
    """Show errors about a name as errors about the field that it was written in, and its whole value."""
    try:
        yield
    except InputError as error:
        raise InputError(field, value, error.expected) from None
