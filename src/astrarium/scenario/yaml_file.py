"""YAML text as plain data; a key that stands twice is an error, since one of the two would be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from astrarium.core.errors import InputError


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise InputError(
                    f"line {key_node.start_mark.line + 1}", key_node.value, "a key that stands only once"
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except InputError as error:
        raise error.read_from(source) from None
    except RecursionError:
        raise InputError("", None, "YAML that is not nested so deeply", source) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(place, None, f"YAML: {problem}", source) from None


def read_yaml(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError("", None, f"a scenario file that can be read: {error.strerror}", str(path)) from None
    except UnicodeDecodeError:
        raise InputError("", None, "a scenario file in UTF-8", str(path)) from None
    return parse_yaml(text, str(path))
