"""The contract of model backends is what a worker asks of a model.

Backends import nothing but numpy, the standard library and their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from astrarium.core.errors import AstrariumError, InputError
from astrarium.serving.live.backends.precise_wait import Wait
from astrarium.serving.live.packing import PackedShape
from astrarium.serving.live.tensors import Array, TensorSpec


class ModelFailed(AstrariumError):
    """The model broke on a batch, or answered with something that its outputs do not allow."""


class PaddingRemains(ModelFailed):
    """The answer to a padded batch has an open output of another length than its inputs.

    So nobody knows what of it is padding. Item by item, or among items of its shape, it would have none.
    """


class Interrupted(AstrariumError):
    """The batch was stopped before its end, because the worker asked for it."""


def package(name: str, extra: str) -> Any:
    """Import a package that only this backend needs."""
    try:
        return import_module(name)
    except ImportError as error:
        expected = f"the package {name}: pip install 'astrarium[{extra}]' ({error})"
        raise InputError("backend", extra, expected) from error


def powers_to(largest: int) -> list[int]:
    """Return batch sizes: 1, 2, 4, ... and the largest itself."""
    return [*(1 << power for power in range((largest - 1).bit_length())), largest]


@dataclass(frozen=True)
class Place:
    """A place is where a model is loaded: the GPU's number and kind, and a device for real ones."""

    gpu: int = 0
    kind: str = "gpu"
    device: str = "cpu"  # "cpu" or "cuda:0"


@dataclass(frozen=True)
class ModelFiles:
    """Model files are a model as the scenario describes it, in plain data that travels to workers.

    They name the backend, its options, its tensors, and the folder that relative file names start from.
    `inputs` are all that the model takes, those that the server fills among them (`fills.py`).
    """

    name: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[TensorSpec, ...] = ()  # empty: the backend finds out by itself
    outputs: tuple[TensorSpec, ...] = ()
    max_batch: int = 1
    base: Path = Path()
    lengths: str = ""  # the name of an input that the server fills with the items' lengths
    mask: str = ""  # and of one that is 1 where an item has elements, and 0 where it was padded
    buckets: tuple[int, ...] = ()  # lengths that batches are padded to, rising; empty: the longest item's
    bucket_sizes: tuple[int, ...] = ()  # the largest batch of each; empty: max_batch
    bucket_shares: tuple[float, ...] = ()  # how often requests are rounded up to each; empty: nobody knows
    sizes: tuple[tuple[int, ...], ...] = ()  # with several open dimensions, in the place of buckets
    offsets: str = ""  # the name of an input that the server fills with where packed items begin
    pack: bool = False  # whether open inputs are packed: the items of a batch one after another


@dataclass(frozen=True)
class Batch:
    """A batch is inputs stacked along a first dimension of `size`; `applications` are those of its items.

    Inputs must not be written: some are a client's own, in shared memory, and cannot be. Items that were
    padded have what shapes they were in `own_shapes`, by input. A batch of unequal items is given to a model
    only where padding does not change its answers (`worker/padding.py`). Where open inputs are packed, one
    item after another along their first dimension, `lengths` are those of the items, and `rest` those of
    further ones behind them, which are nobody's and give the batch the shape of a graph: `size` leaves
    them out.
    """

    size: int
    inputs: dict[str, Array]
    applications: Sequence[int] = ()
    own_shapes: Mapping[str, Sequence[tuple[int, ...]]] = field(default_factory=dict)
    lengths: Sequence[int] = ()
    rest: Sequence[int] = ()


@dataclass(frozen=True)
class Result:
    """A result is outputs stacked in the same order, or a list of items where their shapes differ.

    `own_times` holds the nanoseconds that each item would take alone, where the backend knows.
    """

    outputs: Mapping[str, Array | Sequence[Array]]
    own_times: Sequence[int] = ()


class LoadedModel(Protocol):
    """A loaded model is in memory and runs batches, called from one thread.

    An exception that `run` raises fails its batch, with the exception's text as the reason.

    The protocols below, from `Reporting` to `TimedModel`, are optional: a worker looks once, when a model is
    loaded, which of them it has.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def warm_up(self, sizes: Sequence[int]) -> None:
        """Run once at each of these batch sizes, so that the first request is not slowed by it."""

    def run(self, batch: Batch) -> Result: ...

    def close(self) -> None: ...


@runtime_checkable
class Reporting(Protocol):
    """A reporting model has found out something about itself while it was loaded, and says it then."""

    notes: Sequence[str]  # for the log, as are the next
    warnings: Sequence[str]
    weights: int  # their bytes
    phases: Mapping[str, int]  # how many nanoseconds each part of loading took


@runtime_checkable
class Varied(Protocol):
    """A varied model takes unequal times by application: `astrarium profile` measures each of them."""

    applications: Mapping[str, Any]  # generator of random numbers -> inputs of one request, by name


class Ran(NamedTuple):
    """A launched batch ran: its result, and when the GPU began and ended it (monotonic nanoseconds)."""

    result: Result
    began: int
    ended: int


class Launched(Protocol):
    """A launched batch is with the GPU, behind those it was given before."""

    def wait(self, free: int) -> Ran:
        """Wait until the batch has run; raise Interrupted where the worker stopped it.

        *free* is when the GPU was done with the batch before: the earliest that this one can have begun.
        """


@runtime_checkable
class Launching(Protocol):
    """A launching model's GPU works on its own while the host goes on.

    The worker launches a batch as soon as it has the order and the time, which may be before the batches
    ahead of it have ended, and then waits for each in the order they were launched: the GPU goes from one to
    the next without the host in between. A batch begins no earlier than `not_before`, nor before the one
    ahead has ended. Batches of models without `launch` have the GPU, and the host, to themselves.
    """

    def launch(self, batch: Batch, not_before: int) -> Launched: ...


@runtime_checkable
class Pipelined(Launching, Protocol):
    """A pipelined model's GPU is a real one, which begins a batch as soon as it can.

    The worker launches one when its time has come, or behind another, and launches it even if the answers of
    the one that runs have to wait for that.
    """

    in_flight: int  # batches that the GPU takes at once: the one that runs, and those behind it


@runtime_checkable
class Interruptible(Protocol):
    """An interruptible model is given the worker's wait, which hears orders meanwhile."""

    wait_until: Wait


@runtime_checkable
class Staging(Protocol):
    """A staging model has memory of its own for inputs, such as pinned memory.

    The worker gathers a batch right there where it can, which saves a copy; `run` or `launch` is then given
    these very arrays. What they hold is needed until `run` returns, or a launched batch has run.
    """

    def staging(self, size: int) -> Mapping[str, Array]:
        """Return an array for each input of the next batch, as far as inputs have such memory."""


@runtime_checkable
class Exemplary(Protocol):
    """An exemplary model wants made-up inputs within other limits than those of clients."""

    example_inputs: tuple[TensorSpec, ...]


@runtime_checkable
class IgnoresPadding(Protocol):
    """A model that ignores padding answers as if there was none: a worker need not try that out."""

    ignores_padding: bool


@runtime_checkable
class Bucketed(Protocol):
    """A bucketed model is fastest at some lengths, which batches are padded to where that does no harm."""

    buckets: tuple[int, ...]  # rising; a model may have fewer of them after warming up

    def padding_is(self, safe: bool) -> None:
        """Hear, before warming up, whether batches will be padded: else they come in any length."""


@runtime_checkable
class PackedInGraphs(Bucketed, Protocol):
    """A model that is packed in graphs takes batches of some shapes there; others run without.

    For such a model, padding means the items that are behind a batch in a graph.
    """

    @property
    def packed_shapes(self) -> Sequence[PackedShape]:
        """Return the shapes, rising: before warming up those to come, then those of the graphs there are."""


@runtime_checkable
class Partial(Protocol):
    """A partial model serves before all of its warming up is done.

    The worker does the rest in a thread while the model runs batches.
    """

    partial: bool  # whether there is a rest

    def rest(self) -> Iterator[int]:
        """Do the rest, step by step: each `next` is one."""


def complete(model: LoadedModel) -> None:
    """Do the rest of a model's warming up at once."""
    if isinstance(model, Partial):
        for _ in model.rest():
            pass


class GraphRunner(Protocol):
    """A graph runner is native: a worker's native loop runs the batches of its graphs."""

    def add(self, batch_size: int, graph: int, outputs: Sequence[int], length: int = 0) -> None: ...

    def allow_padding(self) -> None:
        """Pad items to the length of a graph from now on."""

    def takes(self, size: int, length: int = 0) -> bool:
        """Return whether there is a graph for a batch of this size, of items of this length.

        Where they are packed, it is that of all together.
        """

    def rehearse(self, memory: memoryview, order: bytes, times: int) -> list[bytes]:
        """Return what a worker says about an order that is carried out so many times in a row."""

    def finish(self) -> None:
        """Wait for all that the GPU was given."""


@runtime_checkable
class GraphModel(Protocol):
    """A graph model was captured in CUDA graphs, which native code runs where it can."""

    graphs: GraphRunner | None


@runtime_checkable
class SizedGraphs(Protocol):
    """A model whose graphs are of some batch sizes only is measured at these."""

    graph_sizes: Sequence[int]


def graph_sizes(model: object) -> Sequence[int]:
    """Return the batch sizes of a model's graphs, if it says."""
    return model.graph_sizes if isinstance(model, SizedGraphs) else ()


@runtime_checkable
class CountsBesideGraphs(Protocol):
    """A model with graphs may count the batches that none of them could run: those take longer."""

    @property
    def beside_graphs(self) -> int: ...


def graph_runner(model: object, size: int, length: int = 0) -> GraphRunner | None:
    """Return what runs a model's batches of a size and length without Python, if anything does.

    The length is that of all items together where these are packed.
    """
    runner = model.graphs if isinstance(model, GraphModel) else None
    return runner if runner is not None and runner.takes(size, length) else None


class Timed(NamedTuple):
    """The times of a model that needs no Python: native code runs its batches.

    A batch takes what *table* says for its size, and each output is the input of that place in *sources*
    handed back, or zeros (-1).
    """

    table: Sequence[int]
    sources: Sequence[int]


@runtime_checkable
class TimedModel(Protocol):
    timed: Timed | None


class BackendFactory(Protocol):
    """A backend factory is what is registered under a backend's name.

    It may be a `CheckingFactory`, `PackingFactory`, `PreparingFactory` and `ForgetfulFactory`, too.
    """

    def __call__(self, files: ModelFiles, place: Place) -> LoadedModel: ...


@runtime_checkable
class CheckingFactory(Protocol):
    def check(self, files: ModelFiles) -> Mapping[str, Any]:
        """Return the options of a scenario's model as they are wanted: complete, file names absolute.

        This must not need the packages that running the model takes. The InputError names an option, or
        `inputs` or `outputs` where those must be given.
        """


@runtime_checkable
class PackingFactory(Protocol):
    """A packing factory's models take packed inputs (`packing.py`), and their open outputs come packed."""

    packs: bool


@runtime_checkable
class PreparingFactory(Protocol):
    """A preparing factory makes loading shorter for a process in reserve, which has no GPU yet."""

    def prepare(self, files: ModelFiles, code: bool) -> None:
        """Import what loading the model will need.

        With *code* this may also run the code that loading runs, and keep what comes of it. What it raises
        is not told: loading will raise it again.
        """


@runtime_checkable
class ForgetfulFactory(Protocol):
    def forget(self) -> None:
        """Free what was prepared: no model will be loaded soon."""
