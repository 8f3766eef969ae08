"""astrarium policies [NAME]"""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Any

import typer

from astrarium.cli.options import Json

OF_A_CLUSTER, OF_TUNING, OF_SEARCHES = "cluster/", "tuning/", "search/"
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show one policy and its parameters.")]


def policies(name: Name = None, json: Json = False) -> None:
    """List the policies, or describe one."""
    from astrarium.cli.gate import policy as gpu_policy
    from astrarium.cli.output import emit
    from astrarium.cluster.policies import cluster_policies
    from astrarium.placement.policies import placement_policies
    from astrarium.serving.policies import serving_policies
    from astrarium.tuning.policies import searches, tuning_policies

    if name in gpu_policy.KERNEL_POLICIES and name not in serving_policies.names():
        gpu_policy.describe(name, json)
        return
    if name is not None:
        described = {"name": name, **_describe(_named(name))}
        emit(json, described, _page(described), None)
        return
    found = {each: _describe(policy) for each, policy in serving_policies}
    places = {each: _describe(policy) for each, policy in placement_policies}
    kernels = {each: {"summary": said} for each, said in gpu_policy.KERNEL_POLICIES.items()}
    shared = {each: _describe(policy) for each, policy in cluster_policies}
    tuned = {each: _describe(policy) for each, policy in tuning_policies}
    searched = {each: _describe(search) for each, search in searches}
    result = {
        "policies": found,
        "placement_policies": places,
        "cluster_policies": shared,
        "kernel_policies": kernels,
        "tuning_policies": tuned,
        "searches": searched,
    }
    tables = [_list(found), "", _placements(places), "", _clusters(shared), "", gpu_policy.table()]
    tables += ["", _tuning("tuning policy (astrarium tune)", tuned, "policy")]
    tables += ["", _tuning("search (astrarium tune)", searched, "search")]
    emit(json, result, tables, None)


def _named(name: str) -> Any:
    """Batching and placement policies have names of their own; `cluster/NAME` is always one of a cluster,
    `tuning/NAME` one of tuning and `search/NAME` a search."""
    from astrarium.cluster.policies import cluster_policies
    from astrarium.core.errors import InputError, one_of
    from astrarium.placement.policies import placement_policies
    from astrarium.serving.policies import serving_policies
    from astrarium.tuning.policies import searches, tuning_policies

    rooms: dict[str, Any] = {
        OF_A_CLUSTER: cluster_policies,
        OF_TUNING: tuning_policies,
        OF_SEARCHES: searches,
    }
    for prefix, registry in rooms.items():
        if name.startswith(prefix):
            return registry.get(name.removeprefix(prefix))
    registries: list[Any] = [serving_policies, placement_policies, *rooms.values()]
    for registry in registries:
        if name in registry.names():
            return registry.get(name)
    names = list(dict.fromkeys(each for registry in registries for each in registry.names()))
    told = "a serving or placement policy, one of a cluster or of tuning, or a search"
    raise InputError("name", name, f"{told}: {one_of(names, name)}")


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

    from astrarium.core.quantities import Duration, write_duration

    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if getattr(field.type, "__origin__", field.type) is Duration:
        return write_duration(value)
    return msgspec.to_builtins(value, enc_hook=str)


def _type_name(type_: Any) -> str:
    from typing import Literal, get_args, get_origin

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


def _list(found: dict[str, Any]) -> Any:
    from rich.table import Table

    from astrarium.serving.scenario.schema import DEFAULT_POLICY

    table = Table("policy", "what it does", "parameters", box=None, pad_edge=False)
    for name, described in found.items():
        label = f"{name} (default)" if name == DEFAULT_POLICY else name
        table.add_row(label, described["summary"], ", ".join(described["parameters"]))
    return table


def _placements(found: dict[str, Any]) -> Any:
    from rich.table import Table

    from astrarium.serving.planning.search import DEFAULT_PLACEMENT

    table = Table("placement policy (astrarium plan)", "what it does", "parameters", box=None, pad_edge=False)
    for name, described in found.items():
        label = f"{name} (default)" if name == DEFAULT_PLACEMENT else name
        table.add_row(label, described["summary"], ", ".join(described["parameters"]))
    return table


def _clusters(found: dict[str, Any]) -> Any:
    from rich.table import Table

    from astrarium.cluster.scenario.read import DEFAULT_POLICY

    table = Table(
        "cluster policy (astrarium cluster)", "what it does", "parameters", box=None, pad_edge=False
    )
    for name, described in found.items():
        label = f"{name} (default)" if name == DEFAULT_POLICY else name
        table.add_row(label, described["summary"], ", ".join(described["parameters"]))
    return table


def _tuning(title: str, found: dict[str, Any], what: str) -> Any:
    from rich.table import Table

    from astrarium.tuning.scenario.read import DEFAULT_POLICY, DEFAULT_SEARCH

    default = DEFAULT_POLICY if what == "policy" else DEFAULT_SEARCH
    table = Table(title, "what it does", "parameters", box=None, pad_edge=False)
    for name, described in found.items():
        label = f"{name} (default)" if name == default else name
        table.add_row(label, described["summary"], ", ".join(described["parameters"]))
    return table


def _page(described: dict[str, Any]) -> list[Any]:
    from rich.table import Table
    from rich.text import Text

    table = Table("parameter", "type", "default", "meaning", box=None, pad_edge=False)
    for name, parameter in described["parameters"].items():
        default = "(required)" if parameter["required"] else _shown(parameter["default"])
        table.add_row(name, parameter["type"], default, parameter["description"])
    return [Text(f"{described['name']}\n", style="bold"), Text(described["about"] + "\n"), table]
