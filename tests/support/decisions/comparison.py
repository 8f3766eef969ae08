"""Decisions as they come out now, beside those that were recorded."""

from __future__ import annotations

from tests.support.decisions.digests import Case


def changed(recorded: dict[str, str], case: Case) -> list[str]:
    """What a case decides otherwise, in words."""
    return differences({key: value for key, value in recorded.items() if case.has(key)}, case.digests())


def without_a_scenario(recorded: dict[str, str], cases: list[Case]) -> list[str]:
    """The digests that belong to no case, or to more than one."""
    return [key for key in recorded if sum(case.has(key) for case in cases) != 1]


def differences(recorded: dict[str, str], decided: dict[str, str]) -> list[str]:
    """In words, one for each policy on each engine."""
    keys = sorted(recorded.keys() | decided.keys())
    return [
        f"{key}: {_decisions(decided.get(key))}, recorded were {_decisions(recorded.get(key))}"
        for key in keys
        if recorded.get(key) != decided.get(key)
    ]


def _decisions(digest: str | None) -> str:
    if digest is None:
        return "none"
    count, what = digest.split()
    return f"{count} decisions {what[:8]}"
