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


class Choices(NamedTuple):
    """What can be chosen of one kind: its title in the list, where it is looked up, and the default."""

    title: str
    registry: Any  # a registry, or a mapping from names to sentences
    default: str = ""


def _all_choices() -> dict[str, Choices]:
    """Return all that can be chosen by name, under the word that stands before the slash."""
    from astrarium.cli.gate.policy import KERNEL_POLICIES
    from astrarium.levels import SECTIONS, level
    from astrarium.placement.policies import placement_policies
    from astrarium.serving.planning.search import DEFAULT_PLACEMENT
    from astrarium.tuning.policies import DEFAULT_SEARCH, searches

    levels = {name: level(name) for name in SECTIONS}
    by_kind = {
        name: Choices(f"{name} policy ({one_level.subject})", one_level.policies, one_level.default)
        for name, one_level in levels.items()
    }
    return {
        **by_kind,
        "placement": Choices("placement policy (astrarium plan)", placement_policies, DEFAULT_PLACEMENT),
        "search": Choices("search (of a tuning file)", searches, DEFAULT_SEARCH),
        "gate": Choices("kernel policy (astrarium gate)", KERNEL_POLICIES),
    }


def policies(name: Name = None, json: Json = False) -> None:
    """List what can be chosen by name, at every level, or describe one."""
    from astrarium.cli.gate.policy import describe

    by_kind = _all_choices()
    if name is None:
        described = {kind: _described(choices) for kind, choices in by_kind.items()}
        tables = [_list(choices, described[kind]) for kind, choices in by_kind.items()]
        emit(json, {"policies": described}, [part for table in tables for part in (table, "")][:-1], None)
        return
    kind, own = _place_of(name, by_kind)
    if kind == "gate":
        describe(own, json)
        return
    policy = {"name": own, "of": kind, **_describe(by_kind[kind].registry.get(own))}
    emit(json, policy, _page(policy), None)


def _described(choices: Choices) -> dict[str, Any]:
    if isinstance(choices.registry, dict):
        return {name: {"summary": summary, "parameters": {}} for name, summary in choices.registry.items()}
    return {name: _describe(kind) for name, kind in choices.registry}


def _names(choices: Choices) -> list[str]:
    return list(choices.registry) if isinstance(choices.registry, dict) else choices.registry.names()


def _place_of(name: str, by_kind: dict[str, Choices]) -> tuple[str, str]:
    """Return the kind of a policy and its own name; a bare name means the first kind that has it."""
    kind, slash, own = name.partition("/")
    if slash and kind in by_kind:
        if own not in _names(by_kind[kind]):
            raise InputError("name", name, f"a {by_kind[kind].title}: {one_of(_names(by_kind[kind]), own)}")
        return kind, own
    for kind, choices in by_kind.items():
        if name in _names(choices):
            return kind, name
    names = list(dict.fromkeys(known for choices in by_kind.values() for known in _names(choices)))
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
    """Write a default as a scenario file would have it; nothing at all is none."""
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default is None or default in ((), []) else str(default)


def _list(choices: Choices, described: dict[str, Any]) -> Any:
    rows = [
        (
            f"{name} (default)" if name == choices.default else name,
            policy["summary"],
            ", ".join(policy["parameters"]),
        )
        for name, policy in described.items()
    ]
    return table(choices.title, "what it does", "parameters", rows=rows)


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
