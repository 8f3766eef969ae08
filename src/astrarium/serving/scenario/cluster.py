"""The `cluster` section: GPUs in groups, or as one count."""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import (
    Bytes,
)

GpuCount = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class GpuGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group has alike GPUs, spread evenly over `nodes` machines of their own."""

    count: GpuCount
    kind: str = "gpu"
    memory: Bytes = Bytes(0)
    nodes: Count = 1

    def __post_init__(self) -> None:
        if self.nodes > self.count:
            raise InputError("nodes", self.nodes, f"at most one node for each of the {self.count} GPUs")


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs are numbered in order. The short form (a count, with kind, memory and nodes beside it) is one
    group."""

    gpus: GpuCount | tuple[GpuGroup, ...]
    kind: str | None = None
    memory: Bytes | None = None
    nodes: Count | None = None

    def __post_init__(self) -> None:
        filled = [name for name in ("kind", "memory", "nodes") if getattr(self, name) is not None]
        if isinstance(self.gpus, int):
            GpuGroup(self.gpus, nodes=self.nodes or 1)
        elif filled:
            raise InputError(filled[0], getattr(self, filled[0]), "this field inside each group of `gpus`")
        elif not self.gpus:
            raise InputError("gpus", [], "at least one group of GPUs")

    @property
    def groups(self) -> tuple[GpuGroup, ...]:
        if not isinstance(self.gpus, int):
            return self.gpus
        group = GpuGroup(self.gpus, self.kind or "gpu", self.memory or Bytes(0), self.nodes or 1)
        return (group,)

    @property
    def size(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def kinds(self) -> list[str]:
        """Return each kind once, in order."""
        return list(dict.fromkeys(group.kind for group in self.groups))
