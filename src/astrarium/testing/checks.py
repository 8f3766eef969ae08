"""Checks of the suites raise errors of their own: they work without a test runner, and under `python -O`."""

from __future__ import annotations


class ContractError(AssertionError):
    """The record of a run breaks the contract."""


class EndlessRunError(AssertionError):
    """The policy keeps asking to be woken although nothing is left to do."""


def ensure(condition: bool, message: str) -> None:
    """`assert` that survives `python -O` and needs no help from a test runner."""
    if not condition:
        raise ContractError(message)


def same(what: str, got: object, expected: object) -> None:
    ensure(got == expected, f"{what} differ:\n{got}\nexpected\n{expected}")
