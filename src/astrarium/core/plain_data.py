"""YAML and CSV text is read here as plain data: mappings, lists, numbers and text.

What would take a reader's memory or stack is refused, and so is a key that stands twice in a mapping, since
one of the two values would be lost. Errors name the line.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from astrarium.core.errors import InputError, read_from

MOST_DEPTH = 100  # lists and mappings that stand in each other
MOST_VALUES = 1_000_000  # of a text with aliases, once these are written out
MOST_BITS = 1000  # of a whole number: a float can hold it, and Python can write it

_SCALARS = {
    "int": "a whole number of at most 300 digits",
    "float": "a number",
    "bool": "true or false",
    "timestamp": "a date that there is, such as 2026-11-23 (in quotes, if it is meant as text)",
}
_WRONG_SCALAR = (ValueError, ArithmeticError, LookupError, AttributeError)  # as PyYAML raises them


class _Loader(yaml.SafeLoader):
    """A loader that refuses what would take a reader's memory or stack, and names the line."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._aliases = False

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if self._aliases and _written_out(node, {}) > MOST_VALUES:
            raise InputError(
                "", None, f"YAML of at most {MOST_VALUES:,} values, with all aliases written out"
            )
        return node

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._aliases |= isinstance(event, yaml.AliasEvent)
        if self._depth > MOST_DEPTH:
            expected = f"at most {MOST_DEPTH} lists and mappings in each other"
            raise InputError(f"line {event.start_mark.line + 1}", None, expected)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except _WRONG_SCALAR:
            raise _wrong_scalar(node) from None
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise _wrong_scalar(node)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:bool":  # YAML 1.1 takes `on` for true: a key is a name
                key_node.tag = "tag:yaml.org,2002:str"
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise InputError(
                    f"line {key_node.start_mark.line + 1}", key_node.value, "a key that stands only once"
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _wrong_scalar(node: yaml.Node) -> InputError:
    expected = _SCALARS.get(str(node.tag).rpartition(":")[2], "a value that YAML can hold")
    value = node.value if isinstance(node, yaml.ScalarNode) else None
    return InputError(f"line {node.start_mark.line + 1}", value, expected)


def _written_out(node: Any, known: dict[yaml.Node, int]) -> int:
    """Return how many values there are where every alias is replaced by what it stands for."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if node not in known:
        known[node] = MOST_VALUES + 1  # what an alias inside of itself stands for has no end
        children = (child for pair in node.value for child in (pair if isinstance(pair, tuple) else (pair,)))
        known[node] = 1 + sum(_written_out(child, known) for child in children)
    return known[node]


# YAML 1.1 takes 1e5 for text: it wants 1.0e+5. People write 1e5, and mean the number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+\Z"), list("+-0123456789")
)


def parse_yaml(text: str, source: str) -> Any:
    try:
        with read_from(source):
            return yaml.load(text, _Loader)
    except RecursionError:
        raise InputError("", None, "YAML that is not nested so deeply", source) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(place, None, f"YAML: {problem}", source) from None


def csv_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of CSV, each with the number of its line."""
    reader = csv.reader(lines)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"line {reader.line_num}", None, f"CSV: {error}") from None


def read_yaml(path: Path, what: str = "a scenario file") -> Any:
    return parse_yaml(read_text(path, what), str(path))


def read_text(path: Path, what: str) -> str:
    """Read a text file; errors say *what* it should be."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError("", None, f"{what} that can be read: {error.strerror}", str(path)) from None
    except UnicodeDecodeError:
        raise InputError("", None, f"{what} in UTF-8", str(path)) from None


def as_plain(value: Any) -> Any:
    """Return a value as YAML could hold it: paths as text, tuples as lists, NumPy's numbers as Python's."""
    if callable(getattr(value, "plain", None)):  # a choice
        return as_plain(value.plain())
    if isinstance(value, Mapping):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value
