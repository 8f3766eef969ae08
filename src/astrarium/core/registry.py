"""Names for things that can be chosen in a scenario: ours by their file, strangers' by entry point."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from astrarium.core.errors import InputError, one_of

T = TypeVar("T")


class Registry(Generic[T]):
    """Looks a name up, importing the package of ours that holds such things on first use.

    Third parties add to the same registry with an entry point in the group named *group*. Theirs are loaded
    when they are asked for, so that a broken one harms nobody else.
    """

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind = kind
        self.package = package
        self.group = group
        self._things: dict[str, T] = {}
        self._points: dict[str, EntryPoint] = {}
        self._complete = False

    def register(self, name: str) -> Callable[[T], T]:
        def add(thing: T) -> T:
            if self._things.setdefault(name, thing) is not thing:
                raise InputError(f"{self.kind} name", name, "a name that is not taken yet")
            return thing

        return add

    def names(self) -> list[str]:
        self._discover()
        return sorted(self._things.keys() | self._points.keys())

    def get(self, name: str) -> T:
        self._discover()
        if name not in self._things and name in self._points:
            self._things[name] = self._load(self._points[name])
        if name not in self._things:
            raise InputError("name", name, f"a {self.kind}: {one_of(self.names(), name)}")
        return self._things[name]

    def __iter__(self) -> Iterator[tuple[str, T]]:
        """All that can be had; a warning names those that cannot be loaded."""
        for name in self.names():
            try:
                yield name, self.get(name)
            except InputError as error:
                warnings.warn(str(error), stacklevel=2)

    def _load(self, point: EntryPoint) -> T:
        try:
            thing: T = point.load()
        except Exception as error:
            owner = point.dist.name if point.dist is not None else "a package"
            expected = (
                f"a {self.kind} that can be loaded; the entry point {point.value} of {owner} fails: {error}"
            )
            raise InputError("name", point.name, expected) from error
        return thing

    def _discover(self) -> None:
        if self._complete:
            return
        home = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(home.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for point in entry_points(group=self.group):
            if point.name in self._things:
                warnings.warn(f"the entry point {point.name} = {point.value} is hidden by ours", stacklevel=2)
            else:
                self._points[point.name] = point
        self._complete = True  # last: another thread must not see half of it
