"""A policy, or a search, is chosen by its name, with parameters if any: in files and in Python alike."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Annotated, Any, get_args, get_origin

import msgspec

from astrarium.core.decode import Decoder, parse_yaml, plain
from astrarium.core.errors import InputError
from astrarium.core.registry import Registry

DEFAULT_SEED = 0  # of every level
FORM = "a policy, with parameters if any: timeout or timeout:timeout=10%,gather=fcfs"


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy that has nothing to set takes these."""


class Choice(msgspec.Struct, frozen=True):
    """A name that a registry knows, and the parameters as they were written."""

    name: str
    parameters: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """The choice as tables and folders show it: `timeout (timeout=10%)`."""
        told = ",".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.name} ({told})" if told else self.name

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, **self.parameters}


def parameters_of(kind: Any) -> type[msgspec.Struct]:
    """Return the struct that says what may be set: the class's nested `Parameters`."""
    found: type[msgspec.Struct] = getattr(kind, "Parameters", NoParameters)
    return found


class Registered:
    """A class of a registry, to be chosen with keywords: `Hyperband(iterations=27)` is a checked `Choice`."""

    def __init__(self, registry: Registry[Any], name: str) -> None:
        self.registry, self.name = registry, name

    def __call__(self, **parameters: Any) -> Choice:
        Decoder().decode_struct(self.parameters, parameters, self.name)
        return Choice(self.name, parameters)

    @property
    def parameters(self) -> type[msgspec.Struct]:
        return parameters_of(self.registry.get(self.name))

    @property
    def __signature__(self) -> Signature:
        """The parameters, with types and defaults, for `help` and editors."""
        keyword = Parameter.KEYWORD_ONLY
        fields = msgspec.structs.fields(self.parameters)
        types = [
            get_args(each.type)[0] if get_origin(each.type) is Annotated else each.type for each in fields
        ]
        return Signature(
            [
                Parameter(each.name, keyword, annotation=kind, default=each.default)
                for each, kind in zip(fields, types, strict=True)
            ]
        )

    def __repr__(self) -> str:
        return f"<the {self.registry.kind} {self.name}{self.__signature__}>"


def registered(registry: Registry[Any], kind: Any) -> str | None:
    """Return the name under which a registry has a class; None where it has not."""
    return next((name for name, each in registry if each is kind), None)


def read_choice(raw: Any, field: str, usual: str) -> Choice:
    """Read a name, or a mapping with a name and parameters; nothing at all means *usual*."""
    written = {} if raw is None else {"name": raw} if isinstance(raw, str) else raw
    if not isinstance(written, dict):
        raise InputError(field, raw, f"a name, or a mapping such as {{name: {usual}}}")
    given = {"name": usual, **written}
    name = given.pop("name")
    if not isinstance(name, str):
        raise InputError(f"{field}.name", name, f"a name, such as {usual}")
    return Choice(name, given)


def parse_choice(spec: str) -> Choice:
    """Read the short form of the command line: 'timeout:timeout=10%,gather=fcfs'."""
    name, _, rest = spec.partition(":")
    pairs = [part.partition("=") for part in rest.split(",") if part]
    if not name or any(not key or not equals for key, equals, _ in pairs):
        raise InputError("-p", spec, FORM)
    return Choice(name, {key.strip(): parse_yaml(value, f"-p {spec}") for key, _, value in pairs})


def as_choice(given: Any, registry: Registry[Any], usual: str, field: str = "policy") -> Choice | None:
    """Return what was given as a choice of a registry; None where it is an object or a class of its own."""
    if isinstance(given, Choice):
        return given
    if isinstance(given, Registered):
        return given()
    if isinstance(given, str):
        try:
            return parse_choice(given)
        except InputError as error:
            raise InputError(field, given, error.expected) from None
    if isinstance(given, Mapping):
        return read_choice(plain(given), field, usual)
    name = registered(registry, given) if isinstance(given, type) else None
    return None if name is None else Choice(name)


def chosen(registry: Registry[Any], choice: Choice, *told: Any, field: str = "policy") -> Any:
    """Make a fresh policy: it hears what its level tells it before the first event, and its parameters."""
    try:
        kind = registry.get(choice.name)
    except InputError as error:
        raise InputError(f"{field}.name", choice.name, error.expected) from None
    return made(kind, choice.parameters, *told, field=field)


def made(kind: Any, parameters: Mapping[str, Any] | None, *told: Any, field: str = "policy") -> Any:
    """Make a policy of this class, with every parameter checked."""
    read = Decoder().decode_struct(parameters_of(kind), dict(parameters or {}), field)
    try:
        return kind(*told, read)
    except InputError as error:
        raise error.at(field) from None
