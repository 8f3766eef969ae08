"""Names for things that can be chosen in a scenario: ours by their file, strangers' by entry point."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from astrarium.core.errors import InputError, one_of

T = TypeVar("T")


class Registry(Generic[T]):
    """Looks a name up, importing the package of ours that holds such things on first use.

    Third parties add to the same registry with an entry point in the group named *group*.
    """

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind, self.package, self.group = kind, package, group
        self._found: dict[str, T] = {}
        self._complete = False

    def register(self, name: str) -> Callable[[T], T]:
        def add(thing: T) -> T:
            if self._found.setdefault(name, thing) is not thing:
                raise InputError(f"{self.kind} name", name, "a name that is not taken yet")
            return thing

        return add

    def names(self) -> list[str]:
        self._discover()
        return sorted(self._found)

    def get(self, name: str) -> T:
        self._discover()
        if name not in self._found:
            raise InputError("name", name, f"a {self.kind}: {one_of(self.names(), name)}")
        return self._found[name]

    def __iter__(self) -> Iterator[tuple[str, T]]:
        return ((name, self._found[name]) for name in self.names())

    def _discover(self) -> None:
        if self._complete:
            return
        home = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(home.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for point in entry_points(group=self.group):
            self._found.setdefault(point.name, point.load())
        self._complete = True  # only now: another thread may ask meanwhile, and waits in the same imports
