"""What a module imports, read from its source: at the top, lazily in functions, or by name at run time."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

# What no deciding module may reach: clocks, chance, threads, sockets, files.
IMPURE = frozenset((
    "asyncio", "concurrent", "datetime", "io", "multiprocessing", "numpy.random", "os", "pathlib", "random",
    "secrets", "socket", "subprocess", "threading", "time", "uuid",
))  # fmt: skip


def imported_modules(source: str, package: str = "", types: bool = True) -> set[str]:
    """Every module the source names; *package* resolves relative imports.

    `from a import b` counts as both `a` and `a.b`: the source does not tell which of them is a module.
    Without *types*, what stands under `if TYPE_CHECKING` is left out: it is named, and never loaded.
    """
    tree = ast.parse(source)
    ignored = set() if types else {id(node) for block in _typing_blocks(tree) for node in ast.walk(block)}
    modules: set[str] = set()
    for node in ast.walk(tree):
        if id(node) not in ignored:
            modules.update(_named_by(node, package))
    return modules


def _typing_blocks(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        match node:
            case ast.If(ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), body):
                yield from body


def breaches(imported: Iterable[str], forbidden: Iterable[str]) -> set[str]:
    """Those of *imported* that are a forbidden module or lie inside one."""
    walls = tuple(forbidden)
    return {name for name in imported if any(name == wall or name.startswith(wall + ".") for wall in walls)}


def _named_by(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.Import(names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module, names, level):
            base = _absolute(module or "", level, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in names)
        case ast.Call(ast.Name("__import__") | ast.Attribute(attr="import_module"), [ast.Constant(name), *_]):
            yield str(name)
        case ast.Attribute(ast.Name("np" | "numpy"), "random"):
            yield "numpy.random"


def _absolute(module: str, level: int, package: str) -> str:
    if not level:
        return module
    parents = package.split(".")
    kept = parents[: len(parents) - (level - 1)]
    return ".".join([*kept, module] if module else kept)
