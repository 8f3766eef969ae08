"""The reference page of the API is made of docstrings: python -m tests.support.api_page docs/api.md"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.choice import Registered
from astrarium.core.decode import bare

LINE = 100  # characters: a longer signature has a line for each parameter
INTRODUCTION = """# The Python API

This page lists what `import astrarium` offers. It is made of the docstrings:
`python -m tests.support.api_page docs/api.md`.

```python
import astrarium

scenario = astrarium.load("scenario.yaml", seed=3)  # or {"policy.name": "eager"} as overrides, or a dict
run = astrarium.simulate(scenario, policy="timeout:timeout=10%")  # a name, a class or an object; any level
run.summary.attainment, run.requests.to_pandas(), run.plot("latency.png"), run.save("runs/mine")
astrarium.compare(scenario, ["astrarium", "eager", MyPolicy], seeds=3).to_pandas()
```

Results print as the tables of the command line, and show the same in a notebook. Importing is cheap: a part
loads when it is first used. Wrong input raises `astrarium.InputError`, which names the field, the value and
what would be right, as the command line does.

Scripts to read and run, one for each kind of user:
[a platform engineer](../examples/python/platform_engineer.py),
[a researcher](../examples/python/researcher.py), [a data scientist](../examples/python/data_scientist.py),
[an operator](../examples/python/cluster_operator.py).

In signatures, `Source` is a file, plain data or a scenario; `Progress` is True, False or a function.
"""
SECTIONS = {
    "Scenarios and runs": ("astrarium", ("load", "simulate", "compare", "replay")),
    "Results": ("astrarium", ("Run", "Comparison", "Table", "Replay")),
    "How much, and where": ("astrarium", ("goodput", "Goodput", "plan", "Plan")),
    "Serving": ("astrarium", ("serve", "Server", "ServerError")),
    "Tuning": ("astrarium", ("tune", "Tuned", "report", "resumed")),
    "For trainings": (
        "astrarium.tuning",
        ("Best", "Live", "Emulated", "Training", "Workers", "workers", "iterations"),
    ),
    "Optuna": ("astrarium.tuning.optuna", ("optimize",)),
    "Ray Tune": ("astrarium.tuning.ray_tune", ("fit", "resource_changing")),
    "Types and errors": ("astrarium", ("Scenario", "Policy", "Choice", "AstrariumError", "InputError")),
}


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    for title, (home, names) in SECTIONS.items():
        module = import_module(home)
        parts.append(f"## {title}\n")
        parts += [_entry(f"{home}.{name}", getattr(module, name)) for name in names]
        if title == "Tuning":
            parts.append(_searches_and_policies())
    return "\n".join(parts)


def _entry(name: str, thing: Any) -> str:
    head = f"### {name}\n"
    if not inspect.isclass(thing):
        return "\n".join([head, _code(name, thing), _text(thing), ""])
    lines = [_code(name, thing)] if issubclass(thing, msgspec.Struct) else []
    return "\n".join([head, *lines, _text(thing), "", *_members(thing)])


def _members(kind: type) -> Iterator[str]:
    rows = [f"| `{name}` | {_first(member)} |" for name, member in _properties(kind)]
    if rows:
        yield from ("| attribute | meaning |", "| --- | --- |", *rows, "")
    for name, member in _methods(kind):
        yield from (_code(name, member), _text(member), "")


def _public(kind: type) -> Iterator[tuple[str, Any]]:
    """Return a class's own members, and those of base classes that are no result themselves, by name."""
    for name, member in vars(kind).items():
        if not name.startswith("_"):
            yield name, member


def _properties(kind: type) -> list[tuple[str, Any]]:
    return [
        (name, member)
        for name, member in _public(kind)
        if isinstance(member, property | cached_property) and _first(member)
    ]


def _methods(kind: type) -> list[tuple[str, Any]]:
    return [(name, member) for name, member in _public(kind) if inspect.isfunction(member) and member.__doc__]


def _code(name: str, function: Callable[..., Any]) -> str:
    return f"```python\n{_signature(name.rpartition('.')[2], function)}\n```\n"


def _signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parts = list(_parameters(signature))
    returns = (
        ""
        if signature.return_annotation in (inspect.Signature.empty, "None")
        else signature.return_annotation
    )
    end = f" -> {returns}" if returns else ""
    short = f"{name}({', '.join(parts)}){end}"
    if len(short) <= LINE:
        return short
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){end}"])


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    marked = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not marked:
            marked = True
            yield "*"
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        shown = f"{stars}{parameter.name}"
        shown += "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
        default = repr(parameter.default).replace("<factory>", "{}")
        yield shown if parameter.default is parameter.empty else f"{shown} = {default}"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(bare(annotation))


def _text(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _first(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()).replace("|", "\\|")


def _searches_and_policies() -> str:
    tuning = import_module("astrarium.tuning")
    registered = {
        name: thing for name in tuning.__all__ if isinstance(thing := getattr(tuning, name), Registered)
    }
    text = (
        "### Searches and policies\n\n"
        "Each stands in `astrarium.tuning`, and is configured by keywords, checked as in a file: "
        '`search=Hyperband(iterations=81)` is `search="hyperband:iterations=81"`.\n'
    )
    rows = [
        f"| `{name}` | {thing.registry.kind} | {_keywords(thing)} |" for name, thing in registered.items()
    ]
    return "\n".join([text, "| name | what it is | keywords |", "| --- | --- | --- |", *rows, ""])


def _keywords(thing: Registered) -> str:
    parameters = thing.__signature__.parameters.values()
    return ", ".join(f"`{parameter.name}={parameter.default!r}`" for parameter in parameters) or "none"


def main(arguments: Iterable[str]) -> None:
    """Write the page to a file, or to stdout."""
    for target in arguments:
        Path(target).write_text(page(), encoding="utf-8")
        return
    sys.stdout.write(page())


if __name__ == "__main__":
    main(sys.argv[1:])
