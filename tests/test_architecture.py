"""Who may know whom: the arrows of the house, read from the source of every module."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import astrarium
from astrarium.serving.policies import serving_policies
from astrarium.testing.imports import IMPURE, breaches, imported_modules
from tests.support.paths import ROOT

HOUSE = Path(astrarium.__file__).parent
LEVELS = ("device", "serving", "tuning", "cluster")
PACKAGES = {path.name for path in HOUSE.iterdir() if (path / "__init__.py").exists()}

# What each package may import of ours; docs/architecture.md shows the same. `cli` and the API see all.
ARROWS: dict[str, set[str]] = {
    "core": set(),
    "run": {"core"},
    "placement": {"core"},
    "gate": {"core"},
    "serving": {"core", "placement", "run"},
    "device": {"core", "run"},
    "tuning": {"core", "device", "gate", "run"},  # its trials share a GPU by lanes, or by the gate
    "cluster": {"core", "run"},
    "server": {"core", "run", "serving"},
    "testing": {"core", "placement", "run", *LEVELS},
    "api": PACKAGES - {"cli"},
    "cli": PACKAGES,
}
BELOW = {"tuning": {"live": {"device", "gate"}}}  # packages that only a part of a level may use

# The names that every level has. Those outside of deciding: the simulated and the real world, and what
# becomes of files and finished runs.
NAMES = ("contract", "state", "policies", "world", "live", "scenario", "report", "record", "level")
WORLDS = {"world", "live"}
NOT_DECIDING = WORLDS | {"scenario", "report", "record", "level", "workloads"}
NOT_DECIDING |= {"goodput", "path_load", "planned", "planning", "traces", "twin", "zoo"}  # of serving
NOT_DECIDING |= {"salus", "salus_trace"}  # of device
NOT_DECIDING |= {"optuna", "ray_tune", "__init__"}  # of tuning; the last shows what Python users need
DATA = {"results", "recorded"}  # folders of files that nobody reads one by one
MOST_SIBLINGS = 20

# Names of policies that mean something else as well: our own name, and a parameter of the protocol.
WORDS_OF_THEIR_OWN = {"astrarium", "timeout"}

# What core does beyond pure computation, and why.
CORE_EXCEPTIONS: dict[str, set[str]] = {
    "plain_data": {"pathlib"},  # reads YAML files; policies have no use for it
    "trace": {"pathlib"},  # writes and reads recordings; drivers call it, policies have no use for it
    "level": {"pathlib"},  # the type of the folders that reports write to
    "processes": {"numpy.random"},  # the type of the generator it is handed
    "random_streams": {"numpy.random"},  # makes the random streams that others are handed
    "distributions": {"numpy.random"},  # the type of the generator it is handed
    "lengths": {"numpy.random"},  # the type of the generator it is handed
}


def module_name(path: Path) -> str:
    return ".".join([HOUSE.name, *path.relative_to(HOUSE).with_suffix("").parts]).removesuffix(".__init__")


@cache
def imports(path: Path, types: bool = True) -> set[str]:
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return imported_modules(path.read_text(), package, types)


def modules(package: str) -> list[Path]:
    return sorted((HOUSE / package).rglob("*.py"))


def deciding_modules() -> list[Path]:
    return [
        path
        for level in LEVELS
        for path in modules(level)
        if not NOT_DECIDING.intersection(path.relative_to(HOUSE / level).with_suffix("").parts[:1])
    ]


def packages_of_ours(imported: set[str]) -> set[str]:
    named = {name.split(".")[1] for name in imported if name.startswith("astrarium.")}
    return named & PACKAGES


def test_every_package_has_its_arrows() -> None:
    assert ARROWS.keys() == PACKAGES


def test_the_page_shows_the_same_arrows() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page, re.MULTILINE)
    assert {package for package, _ in rows} == PACKAGES
    for package, told in rows:
        named = set(re.findall(r"`(\w+)`", told)) | (set(LEVELS) if "the levels" in told else set())
        assert "everything" in told or named == ARROWS[package], package


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_imports_only_where_its_arrows_point(package: str) -> None:
    for path in modules(package):
        known = packages_of_ours(imports(path, types=False))
        assert known <= ARROWS[package] | {package}, (
            f"{module_name(path)} imports {known - ARROWS[package] - {package}}"
        )


def test_core_names_nothing_else_of_ours_not_even_a_type() -> None:
    for path in modules("core"):
        assert packages_of_ours(imports(path)) <= {"core"}, module_name(path)


@pytest.mark.parametrize("level", LEVELS)
def test_deciding_modules_of_a_level_name_core_and_itself_only(level: str) -> None:
    for path in deciding_modules():
        if path.is_relative_to(HOUSE / level):
            assert packages_of_ours(imports(path)) <= {"core", level}, module_name(path)


@pytest.mark.parametrize("level", BELOW)
def test_only_the_live_part_of_a_level_uses_what_lies_below(level: str) -> None:
    for path in modules(level):
        part = path.relative_to(HOUSE / level).parts[0]
        used = packages_of_ours(imports(path)) & set().union(*BELOW[level].values())
        assert used <= BELOW[level].get(part, set()), module_name(path)


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_has_the_same_names(level: str) -> None:
    found = {path.stem for path in (HOUSE / level).iterdir()}
    assert set(NAMES) <= found


def test_no_import_leads_back_to_where_it_began() -> None:
    files = {module_name(path): path for path in HOUSE.rglob("*.py")}
    graph = {name: sorted((imports(path) & files.keys()) - {name}) for name, path in files.items()}
    for package in [name for name, path in files.items() if path.name == "__init__.py"]:
        graph[package] = [name for name in graph[package] if name != package]
    sorter = TopologicalSorter({name: _loaded(graph, files, name) for name in graph})
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def _loaded(graph: dict[str, list[str]], files: dict[str, Path], name: str) -> list[str]:
    """The modules that *name* imports; of `from package import name` the module that it means."""
    named = imports(files[name])
    return [
        each
        for each in graph[name]
        if not any(other in files and other.startswith(each + ".") for other in named)
    ]


@pytest.mark.parametrize("top", ["src", "papers", "tests", "benchmarks", "docs", "examples"])
def test_no_folder_has_more_siblings_than_one_can_look_at(top: str) -> None:
    for folder in [
        ROOT / top,
        *(path for path in (ROOT / top).rglob("*") if path.is_dir() and _is_shown(path)),
    ]:
        shown = [path for path in folder.iterdir() if _is_shown(path)]
        if folder.name not in DATA:
            assert len(shown) <= MOST_SIBLINGS, folder


def _is_shown(path: Path) -> bool:
    """Whether somebody who opens a folder looks at this: caches and built libraries are not for people."""
    hidden = path.name.startswith(".") or path.name in ("__init__.py", "__pycache__", "py.typed")
    return not hidden and path.suffix not in (".so", ".pyi")


def test_nothing_imports_the_command_line() -> None:
    for path in HOUSE.rglob("*.py"):
        if path.relative_to(HOUSE).parts[0] not in ("cli", "__main__.py"):
            assert "cli" not in packages_of_ours(imports(path)), module_name(path)


def test_the_product_and_its_tests_do_without_the_papers() -> None:
    """The command line loads `astrarium reproduce` by name, where the papers' package is installed."""
    for path in [*HOUSE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        source = path.read_text()
        if "papers" in source and path != HOUSE / "cli" / "main.py":
            assert not breaches(imported_modules(source), {"astrarium_papers", "papers"}), path


def test_deciding_modules_import_no_clock_no_chance_no_io() -> None:
    found = {module_name(path): breaches(imports(path), IMPURE) for path in deciding_modules()}
    assert len(found) > 10
    assert not {name: impure for name, impure in found.items() if impure}


def test_deciding_modules_do_not_know_the_truth_or_who_drives_them() -> None:
    worlds = {f"astrarium.{level}.{package}" for level in LEVELS for package in WORLDS}
    for path in deciding_modules():
        assert not breaches(imports(path), worlds), module_name(path)


def test_core_is_pure_but_for_the_exceptions_above() -> None:
    for path in modules("core"):
        impure = {module for module in IMPURE if breaches(imports(path), {module})}
        assert impure == CORE_EXCEPTIONS.get(path.stem, set()), module_name(path)


@pytest.mark.parametrize("package", ["run", "server", "testing"])
def test_mechanism_knows_no_policy_by_name(package: str) -> None:
    for path in modules(package):
        for level in LEVELS:
            package = f"astrarium.{level}.policies"
            inside = {f"{package}.{each.stem}" for each in (HOUSE / level / "policies").iterdir()}
            assert not breaches(imports(path), inside), module_name(path)
        constants = (
            node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
        )
        named = set(serving_policies.names()) & {text for text in constants if isinstance(text, str)}
        named -= WORDS_OF_THEIR_OWN
        assert not named, f"{module_name(path)} mentions {named}"


@pytest.mark.parametrize("module", ["astrarium", "astrarium.cli.main", "astrarium.serving.policies"])
def test_importing_stays_light(module: str) -> None:
    heavy = [
        "torch",
        "ray",
        "matplotlib",
        "numpy",
        "hypothesis",
        "pytest",
        "scipy",
        "highspy",
        "onnxruntime",
        "optuna",
    ]
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import time", {"time"}),
        ("def f():\n    import random", {"random"}),
        ("from os import path", {"os", "os.path"}),
        ("from . import clock", {"a.b", "a.b.clock"}),
        ("from ..c import d", {"a.c", "a.c.d"}),
        ("import importlib\nimportlib.import_module('socket')", {"importlib", "socket"}),
        ("__import__('time')", {"time"}),
        ("import numpy as np\nnp.random.rand()", {"numpy", "numpy.random"}),
        ("from numpy import random", {"numpy", "numpy.random"}),
    ],
)
def test_imports_are_found_wherever_they_hide(source: str, named: set[str]) -> None:
    assert imported_modules(source, package="a.b") == named


def test_what_only_types_need_can_be_told_apart() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import time\nelse:\n    import random"
    assert breaches(imported_modules(source), IMPURE) == {"time", "random"}
    assert breaches(imported_modules(source, types=False), IMPURE) == {"random"}


def test_a_breach_is_a_module_or_what_lies_in_it() -> None:
    assert breaches({"os.path", "osmium", "time"}, {"os", "time"}) == {"os.path", "time"}
