"""A policy, or a search, is chosen by its name, with parameters if any: in files and in Python alike."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Annotated, Any, ClassVar, Self

import msgspec
import yaml

from astrarium.core.decode import Decoder, bare
from astrarium.core.errors import InputError, written_in
from astrarium.core.plain_data import as_plain, parse_yaml
from astrarium.core.registry import Registry

Seed = Annotated[int, msgspec.Meta(ge=0)]
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
        parameters = ",".join(f"{key}={value}" for key, value in self.parameters.items()).replace("'", "")
        return f"{self.name} ({parameters})" if parameters else self.name

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, **self.parameters}


class WrittenScenario(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario that can be written down again as its file has it, with another policy or seed."""

    policies: ClassVar[Registry[Any]]
    policy: Choice
    seed: int
    raw: dict[str, Any]  # as written, overrides included
    source: str = ""

    def with_policy(self, name: str, **parameters: Any) -> Self:
        choice = Choice(name, parameters)
        chosen(self.policies, choice)
        return msgspec.structs.replace(self, policy=choice, raw={**self.raw, "policy": choice.plain()})

    def with_seed(self, seed: int) -> Self:
        return msgspec.structs.replace(self, seed=seed, raw={**self.raw, "seed": seed})

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.raw, sort_keys=False))


def parameters_of(kind: Any) -> type[msgspec.Struct]:
    """Return the struct that says what may be set: the class's nested `Parameters`."""
    parameters: type[msgspec.Struct] = getattr(kind, "Parameters", NoParameters)
    return parameters


class Registered:
    """A class of a registry, to be chosen with keywords: `Hyperband(iterations=27)` is a checked `Choice`."""

    def __init__(self, registry: Registry[Any], name: str) -> None:
        self.registry = registry
        self.name = name

    def __call__(self, **parameters: Any) -> Choice:
        Decoder().decode_struct(self.parameters, parameters, self.name)
        return Choice(self.name, parameters)

    @property
    def parameters(self) -> type[msgspec.Struct]:
        return parameters_of(self.registry.get(self.name))

    @property
    def __signature__(self) -> Signature:
        """The parameters, with types and defaults, for `help` and editors."""
        fields = msgspec.structs.fields(self.parameters)
        return Signature(
            [
                Parameter(
                    field.name, Parameter.KEYWORD_ONLY, annotation=bare(field.type), default=field.default
                )
                for field in fields
            ]
        )

    def __repr__(self) -> str:
        return f"<the {self.registry.kind} {self.name}{self.__signature__}>"


def read_choice(raw: Any, field: str, usual: str) -> Choice:
    """Read a name, or a mapping with a name and parameters; nothing at all means *usual*."""
    written = {} if raw is None else {"name": raw} if isinstance(raw, str) else raw
    if not isinstance(written, dict):
        raise InputError(field, raw, f"a name, or a mapping such as {{name: {usual}}}")
    fields = {"name": usual, **written}
    name = fields.pop("name")
    if not isinstance(name, str):
        raise InputError(f"{field}.name", name, f"a name, such as {usual}")
    return Choice(name, fields)


def read_policy(raw: Any, registry: Registry[Any], usual: str, field: str = "policy") -> Choice:
    """Read a choice as `read_choice` does, and check that it can be made."""
    choice = read_choice(raw, field, usual)
    chosen(registry, choice, field=field)
    return choice


def parse_choice(spec: str) -> Choice:
    """Read the short form of the command line: 'timeout:timeout=10%,gather=fcfs'."""
    name, _, rest = spec.partition(":")
    pairs = [part.partition("=") for part in rest.split(",") if part]
    if not name or any(not key or not equals for key, equals, _ in pairs):
        raise InputError("-p", spec, FORM)
    return Choice(name, {key.strip(): parse_yaml(value, f"-p {spec}") for key, _, value in pairs})


def as_choice(value: Any, registry: Registry[Any], usual: str, field: str = "policy") -> Choice | None:
    """Return what was given as a choice of a registry; None where it is an object or a class of its own."""
    if isinstance(value, Choice):
        return value
    if isinstance(value, Registered):
        return value()
    if isinstance(value, str):
        with written_in(field, value):
            return parse_choice(value)
    if isinstance(value, Mapping):
        return read_choice(as_plain(value), field, usual)
    if not isinstance(value, type):
        return None
    return next((Choice(name) for name, kind in registry if kind is value), None)


def chosen(registry: Registry[Any], choice: Choice, *arguments: Any, field: str = "policy") -> Any:
    """Make a fresh policy: it hears what its level tells it before the first event, and its parameters."""
    with written_in(f"{field}.name", choice.name):
        kind = registry.get(choice.name)
    return made(kind, choice.parameters, *arguments, field=field)


def made(kind: Any, parameters: Mapping[str, Any] | None, *arguments: Any, field: str = "policy") -> Any:
    """Make a policy of this class, with every parameter checked."""
    read = Decoder().decode_struct(parameters_of(kind), dict(parameters or {}), field)
    try:
        return kind(*arguments, read)
    except InputError as error:
        raise error.at(field) from None
