"""A field of a model is put into the text of a scenario file; all else, comments too, stays as it is."""

from __future__ import annotations

from typing import Any

import yaml

from astrarium.core.errors import InputError
from astrarium.core.plain_data import parse_yaml

_BY_HAND = "a file whose models are written out one by one; put it there by hand"


def with_field(text: str, model: str, field: str, value: str, source: str) -> str:
    """Return the text with the *value*, YAML that fits on one line, in a field of a model.

    InputError where the edit would change anything else.
    """
    before = parse_yaml(text, source)
    entry = _entry(text, model, source)
    start, end, new = _place(entry, field, value)
    edited = text[:start] + new + text[end:]
    changed = {**before["models"][model], field: parse_yaml(value, source)}
    wanted = {**before, "models": {**before["models"], model: changed}}
    if not _says(edited, wanted):  # anchors, merged keys: forms that share text between models
        raise InputError(f"models.{model}.{field}", None, _BY_HAND, source)
    return edited


def _says(text: str, wanted: Any) -> bool:
    try:
        return bool(parse_yaml(text, "") == wanted)
    except InputError:
        return False


def _entry(text: str, model: str, source: str) -> yaml.MappingNode:
    models = _value(yaml.compose(text), "models")
    entry = _value(models, model) if isinstance(models, yaml.MappingNode) else None
    if not isinstance(entry, yaml.MappingNode) or not entry.value:
        raise InputError(f"models.{model}", None, _BY_HAND, source)
    return entry


def _place(entry: yaml.MappingNode, field: str, value: str) -> tuple[int, int, str]:
    """Return which stretch of the text becomes what."""
    present = _value(entry, field)
    if present is not None:
        return present.start_mark.index, _end(present), value
    first = entry.value[0][0].start_mark
    between = ", " if entry.flow_style else f"\n{' ' * first.column}"
    return first.index, first.index, f"{field}: {value}{between}"


def _value(node: Any, key: str) -> Any:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def _end(node: yaml.Node) -> int:
    """A block's own mark lies behind the comments that follow it: take the end of its last leaf."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)
