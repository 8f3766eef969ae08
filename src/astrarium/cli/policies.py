"""astrarium policies [NAME]"""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import typer

from astrarium.cli.options import Json
from astrarium.cli.output import emit, table
from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import Duration, write_duration

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="One policy and its parameters: NAME, or LEVEL/NAME where several levels have it.",
    ),
]


class Shelf(NamedTuple):
    """Policies of one kind: what the list calls them, where they are used, and which is the default."""

    title: str
    found: Any  # a registry, or a mapping from names to sentences
    default: str = ""


def _shelves() -> dict[str, Shelf]:
    """Return all that can be chosen by name, under the word that stands before the slash."""
    from astrarium.cli.gate.policy import KERNEL_POLICIES
    from astrarium.levels import SECTIONS, level
    from astrarium.placement.policies import placement_policies
    from astrarium.serving.planning.search import DEFAULT_PLACEMENT
    from astrarium.tuning.policies import DEFAULT_SEARCH, searches

    levels = {name: level(name) for name in SECTIONS}
    shelves = {
        name: Shelf(f"{name} policy ({one_level.subject})", one_level.policies, one_level.default)
        for name, one_level in levels.items()
    }
    return {
        **shelves,
        "placement": Shelf("placement policy (astrarium plan)", placement_policies, DEFAULT_PLACEMENT),
        "search": Shelf("search (of a tuning file)", searches, DEFAULT_SEARCH),
        "gate": Shelf("kernel policy (astrarium gate)", KERNEL_POLICIES),
    }


def policies(name: Name = None, json: Json = False) -> None:
    """List what can be chosen by name, at every level, or describe one."""
    from astrarium.cli.gate.policy import describe

    shelves = _shelves()
    if name is None:
        found = {kind: _described(shelf) for kind, shelf in shelves.items()}
        tables = [_list(shelf, found[kind]) for kind, shelf in shelves.items()]
        emit(json, {"policies": found}, [each for table in tables for each in (table, "")][:-1], None)
        return
    kind, own = _place_of(name, shelves)
    if kind == "gate":
        describe(own, json)
        return
    described = {"name": own, "of": kind, **_describe(shelves[kind].found.get(own))}
    emit(json, described, _page(described), None)


def _described(shelf: Shelf) -> dict[str, Any]:
    if isinstance(shelf.found, dict):
        return {name: {"summary": summary, "parameters": {}} for name, summary in shelf.found.items()}
    return {name: _describe(kind) for name, kind in shelf.found}


def _names(shelf: Shelf) -> list[str]:
    return list(shelf.found) if isinstance(shelf.found, dict) else shelf.found.names()


def _place_of(name: str, shelves: dict[str, Shelf]) -> tuple[str, str]:
    """Return the kind of a policy and its own name; a bare name means the first kind that has it."""
    kind, slash, own = name.partition("/")
    if slash and kind in shelves:
        if own not in _names(shelves[kind]):
            raise InputError("name", name, f"a {shelves[kind].title}: {one_of(_names(shelves[kind]), own)}")
        return kind, own
    for kind, shelf in shelves.items():
        if name in _names(shelf):
            return kind, name
    names = list(dict.fromkeys(known for shelf in shelves.values() for known in _names(shelf)))
    raise InputError("name", name, f"a policy of any level, or a search: {one_of(names, name)}")


def _describe(policy: Any) -> dict[str, Any]:
    import msgspec

    from astrarium.core.choice import parameters_of

    module = sys.modules[policy.__module__]
    fields = msgspec.structs.fields(parameters_of(policy))
    return {
        "summary": _summary(policy, module),
        "about": inspect.getdoc(module) or inspect.getdoc(policy) or "",
        "parameters": {field.encode_name: _parameter(field) for field in fields},
    }


def _summary(policy: Any, module: Any) -> str:
    """The first line about it; where the class has none of its own, its module's first sentence."""
    own = policy.__dict__.get("__doc__") if inspect.isclass(policy) else policy.__doc__
    if own:
        return inspect.cleandoc(own).partition("\n")[0]
    first = " ".join((module.__doc__ or "").partition("\n\n")[0].split())
    return first.partition(". ")[0].removesuffix(".") + "." if first else ""


def _parameter(field: Any) -> dict[str, Any]:
    import msgspec

    required = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    described = {"type": _type_name(field.type), "description": _description(field.type)}
    return {**described, "required": required, "default": None if required else _default(field)}


def _default(field: Any) -> Any:
    import msgspec

    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if getattr(field.type, "__origin__", field.type) is Duration:
        return write_duration(value)
    return msgspec.to_builtins(value, enc_hook=str)


def _type_name(type_: Any) -> str:
    if hasattr(type_, "__metadata__"):
        return _type_name(type_.__origin__)
    if get_origin(type_) is Literal:
        return " | ".join(map(str, get_args(type_)))
    if get_origin(type_) is tuple:
        return f"list of {_type_name(get_args(type_)[0])}"
    if get_origin(type_) is dict:
        return " to ".join(_type_name(part) for part in get_args(type_))
    if get_origin(type_) is not None and not isinstance(type_, type):
        return " or ".join(_type_name(part) for part in get_args(type_))
    if type_ is type(None):
        return "none"
    return getattr(type_, "__name__", str(type_))


def _description(type_: Any) -> str:
    notes = (getattr(meta, "description", None) for meta in getattr(type_, "__metadata__", ()))
    return " ".join(note for note in notes if note)


def _shown(default: Any) -> str:
    """As a scenario file would have it; nothing at all is none."""
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default is None or default in ((), []) else str(default)


def _list(shelf: Shelf, policies: dict[str, Any]) -> Any:
    rows = [
        (
            f"{name} (default)" if name == shelf.default else name,
            described["summary"],
            ", ".join(described["parameters"]),
        )
        for name, described in policies.items()
    ]
    return table(shelf.title, "what it does", "parameters", rows=rows)


def _page(described: dict[str, Any]) -> list[Any]:
    from rich.text import Text

    rows = [
        (
            name,
            parameter["type"],
            "(required)" if parameter["required"] else _shown(parameter["default"]),
            parameter["description"],
        )
        for name, parameter in described["parameters"].items()
    ]
    page = table("parameter", "type", "default", "meaning", rows=rows)
    return [Text(f"{described['name']}\n", style="bold"), Text(described["about"] + "\n"), page]
