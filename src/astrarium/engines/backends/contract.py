"""What a worker asks of a model. Backends import nothing but numpy, the standard library and their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from astrarium.engines.tensors import Array, TensorSpec


@dataclass(frozen=True)
class Place:
    """Where a model is loaded: the GPU's number on this machine, its kind, and a device for real ones."""

    gpu: int = 0
    kind: str = "gpu"
    device: str = "cpu"  # "cpu" or "cuda:0"


@dataclass(frozen=True)
class ModelFiles:
    """A model as the scenario describes it: which backend, its options, its tensors, and the folder that
    relative file names start from. Plain data: it travels to workers as one message."""

    name: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[TensorSpec, ...] = ()  # empty: the backend finds out by itself
    outputs: tuple[TensorSpec, ...] = ()
    max_batch: int = 1
    base: Path = Path()


@dataclass(frozen=True)
class Batch:
    """Inputs stacked along a first dimension of `size`; `applications` says where each item comes from.

    Items of unequal shape are padded to the longest; `own_shapes` then holds what they were, by input.
    """

    size: int
    inputs: dict[str, Array]
    applications: Sequence[int] = ()
    own_shapes: Mapping[str, Sequence[tuple[int, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """Outputs stacked in the same order, or a list of items where their shapes differ. `own_times` holds
    the nanoseconds that each item would take alone, where the backend knows."""

    outputs: Mapping[str, Array | Sequence[Array]]
    own_times: Sequence[int] = ()


class LoadedModel(Protocol):
    """A model in memory. `run` is called from one thread; any exception it raises fails its batch, with the
    exception's text as the reason. `interrupted` is asked now and then by a backend that can stop early."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def warm_up(self, sizes: Sequence[int]) -> None:
        """Run once at each of these batch sizes, so that the first request does not pay for it."""

    def run(self, batch: Batch) -> Result: ...

    def close(self) -> None: ...


class Ran(NamedTuple):
    """What came of a launched batch, and when the GPU began and ended it (monotonic nanoseconds)."""

    result: Result
    began: int
    ended: int


class Launched(Protocol):
    """A batch that the GPU has, behind those it was given before."""

    def wait(self, free: int) -> Ran:
        """Until it has run. *free* is when the GPU was done with the batch before it: the earliest instant
        at which this one can have begun. Raises Interrupted where the worker stopped it."""


class Launching(LoadedModel, Protocol):
    """Optional: a model whose GPU works on its own while the host goes on.

    The worker launches a batch as soon as it has the order and the time, which may be before the batches
    ahead of it have ended, and then waits for each in the order they were launched: the GPU goes from one to
    the next without the host in between. A batch begins no earlier than `not_before`, nor before the one
    ahead has ended. Batches of models without `launch` have the GPU, and the host, to themselves.
    """

    def launch(self, batch: Batch, not_before: int) -> Launched: ...


class Staging(LoadedModel, Protocol):
    """Optional: a model that has a place of its own for inputs, such as pinned memory.

    The worker gathers a batch right there where it can, which saves a copy; `run` is then given these very
    arrays. What they hold is needed until `run` returns, and no longer.
    """

    def staging(self, size: int) -> Mapping[str, Array]:
        """An array for each input of a batch of this size; none of those that have no such place."""


class BackendFactory(Protocol):
    """What is registered under a backend's name."""

    def __call__(self, files: ModelFiles, place: Place) -> LoadedModel: ...
