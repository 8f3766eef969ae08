"""No test measures time, which needs a quiet machine: a stopwatch is found in the source of any test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

STOPWATCHES = ("perf_counter", "process_time", "thread_time")  # and the same in nanoseconds
CLOCK = "time.monotonic"  # a test may wait by it, but take no earlier time away from it
WORDS = (*STOPWATCHES, "times", "monotonic")  # a file without any of them need not be parsed


def stopwatches(source: str) -> list[str]:
    """Return what measures time in a program, and in those that it holds as texts."""
    tree = ast.parse(source)
    imported = dict(_imported(tree))
    measures = {_origin(node, imported).removesuffix("_ns") for node in ast.walk(tree)}
    named = measures & {"os.times", *(f"time.{name}" for name in STOPWATCHES)}
    named |= {f"{CLOCK} - ..." for node in ast.walk(tree) if _is_difference(node, imported)}
    return sorted(named.union(*map(stopwatches, _programs(tree))))


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that a module gives to what it imports of `time` and `os`, and what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if (prefix or alias.name).removesuffix(".") in ("time", "os"):
                    yield alias.asname or alias.name, prefix + alias.name


def _origin(node: ast.AST, imported: dict[str, str]) -> str:
    """Return the name in `time` or `os` that an expression stands for, and no text for all else."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, "")
    if isinstance(node, ast.Attribute) and (module := _origin(node.value, imported)):
        return f"{module}.{node.attr}"
    return ""


def _is_difference(node: ast.AST, imported: dict[str, str]) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Call)):
        return False
    return _origin(node.left.func, imported).removesuffix("_ns") == CLOCK


def _programs(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import" in node.value:
            try:
                ast.parse(node.value)
            except SyntaxError:
                continue
            yield node.value


@pytest.mark.parametrize("folder", ["tests", "papers/tests"])
def test_no_test_measures_time(folder: str) -> None:
    """A test counts work (`tests/support/work.py`) or waits with patience; benchmarks say what is fast."""
    for path in (ROOT / folder).rglob("*.py"):
        source = path.read_text()
        if path.name != Path(__file__).name and any(word in source for word in WORDS):
            assert stopwatches(source) == [], path


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import time\ntime.perf_counter()", ["time.perf_counter"]),
        ("import time as clock\nbegan = clock.process_time_ns()", ["time.process_time"]),
        ("from time import thread_time_ns as now\nnow()", ["time.thread_time"]),
        ("import os\nos.times()", ["os.times"]),
        ("from time import monotonic\nmonotonic() - began", ["time.monotonic - ..."]),
        ("RUN = 'from time import perf_counter; perf_counter()'", ["time.perf_counter"]),
        ("import time\nwhile time.monotonic() < ends: time.sleep(ends - time.monotonic())", []),
    ],
)
def test_a_stopwatch_is_found_under_any_name(source: str, expected: list[str]) -> None:
    assert stopwatches(source) == expected
