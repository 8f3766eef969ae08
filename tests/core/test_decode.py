"""Texts that would take a reader's memory or stack are refused, with a word about what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.workloads.traces import read_trace as read_cluster_trace
from astrarium.core.errors import InputError
from astrarium.core.plain_data import MOST_DEPTH, csv_rows, parse_yaml
from astrarium.core.quantities import read_duration, read_rate
from astrarium.core.trace import read_trace
from astrarium.server.recording import RecordingReader
from astrarium.serving import traces

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 12))
WIDE = "9" * 131_073  # one more than a cell of CSV may have


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a:\n  b: {'9' * 5000}", r"file: line 2: expected a whole number of at most 300 digits \(got '999"),
        (f"a: 0x{'f' * 5000}", r"line 1: expected a whole number of at most 300 digits \(got '0xfff"),
        (f"a: {'1:' * 3000}1", "line 1: expected a whole number of at most 300 digits"),
        ("[" * 100_000, f"line 1: expected at most {MOST_DEPTH} lists and mappings in each other"),
        ("{a: " * 5000, f"line 1: expected at most {MOST_DEPTH} lists and mappings in each other"),
        (LAUGHS, "file: expected YAML of at most 1,000,000 values, with all aliases written out"),
        ("a: &a [*a]", "file: expected YAML of at most 1,000,000 values"),
        ("a: 2020-99-99", r"line 1: expected a date that there is, .*got '2020-99-99'"),
        ("a: !!int ''", "line 1: expected a whole number"),
        ("a: !!bool x", "line 1: expected true or false"),
        ("a: !!timestamp x", "line 1: expected a date"),
        ("a: !!float x", "line 1: expected a number"),
    ],
    ids=lambda text: text[:20].strip(),
)
def test_yaml_that_no_reader_could_hold_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_yaml(text, "file")


def test_yaml_within_the_limits_is_read() -> None:
    nested: Any = parse_yaml("[" * MOST_DEPTH + "]" * MOST_DEPTH, "file")
    assert nested
    assert parse_yaml("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}", "file")["d"] == {"b": 1, "e": 2}
    assert parse_yaml(f"a: {'9' * 300}", "file") == {"a": int("9" * 300)}


def test_a_value_that_cannot_be_written_is_named_by_its_type() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert str(InputError("x", 1 << 50_000, "less")).endswith("(got a int that is too large to show)")
    assert str(InputError("x", deep, "less")).endswith("(got a list that is too large to show)")
    while deep:
        deep = deep.pop()  # or taking it apart would need the stack too


def test_a_cell_that_is_too_long_is_named_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 2: expected CSV: field larger than field limit \(131072\)"):
        list(csv_rows(["a,b", f"1,{WIDE}"]))
    path = tmp_path / "trace.csv"
    path.write_text(f"time_ms,model\n1,{WIDE}\n")
    with pytest.raises(InputError, match=r"trace\.csv: line 2: expected CSV"):
        traces.read_trace(str(path))
    path.write_text(f"vc,job,arrival_s,num_gpus,duration_s\na,{WIDE},0,1,1\n")
    with pytest.raises(InputError, match=r"trace\.csv: line 2: expected CSV"):
        read_cluster_trace(path, "philly")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not nested so deeply"),
        (f'{{"arrivals_ms": {{"m": [{"9" * 5000}]}}}}', "arrivals_ms: expected"),
        ('{"arrivals_ms": {"m": [1e999]}}', r"arrivals_ms.m\[0\]: expected a time"),
    ],
    ids=["deep", "long", "infinite"],
)
def test_json_that_no_reader_could_hold_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        traces.read_trace(str(path))


@pytest.mark.parametrize("line", ["[" * 100_000, f"[{'9' * 5000}, [], []]", '["\xff", [], []]'])
def test_lines_of_traces_and_recordings_that_cannot_be_read_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "steps"
    path.write_bytes(line.encode("latin-1") + b"\n")
    with pytest.raises(InputError, match="line 1: expected a trace step"):
        list(read_trace(path, Any, Any))
    with pytest.raises(InputError, match="line 1: expected a step"):
        RecordingReader(path)


@pytest.mark.parametrize("text", ["1e-99999999999999999999s", "1e99999999999999999999s", "9" * 5000 + "s"])
def test_quantities_with_too_many_digits_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration"):
        read_duration(text)


def test_rates_are_finite() -> None:
    with pytest.raises(ValueError, match="a rate"):
        read_rate("1e308M/s")


def test_times_in_nanoseconds_end_where_others_do(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"time_ns,model\n{'9' * 4000},m\n")
    with pytest.raises(InputError, match="line 2: expected a time"):
        traces.read_trace(str(path))
