"""A worker's loop in native code, and models that need no Python to run a batch."""

from collections.abc import Callable, Sequence
from typing import overload

from typing_extensions import Buffer

from astrarium.serving.live.backends.precise_wait import Watch

class GpuStreams:
    """A GPU's streams, the same for all models: their batches run one by one."""

    def __init__(self, library: str, copy_in: int, compute: int, copy_out: int) -> None: ...

class OpenShapes:
    """The tensors of a model whose items have a length, one open dimension each."""

    def __init__(
        self,
        inputs: Sequence[tuple[str, str, Sequence[int]]],
        fills: Sequence[tuple[str, bytes]],
        outputs: Sequence[tuple[str, str, Sequence[int]]],
        longest: int,
        packed: tuple[int, int] | None = None,
    ) -> None:
        """Take of each input who fills it (mask, lengths, offsets, or nothing where clients send it), and the
        bytes of one element: of its padding, or of a mask's one. Graphs are of lengths up to the longest. Of
        packed items, which are from one length to another, that is what all have together."""

class GraphRunner:
    """A runner replays a model's CUDA graphs, some batches in flight at once: each has memory in a slot.
    Whoever makes graphs and memory keeps them alive until it has finished."""

    def __init__(
        self,
        streams: GpuStreams,
        inputs: Sequence[tuple[int, int]],
        outputs: Sequence[int],
        slots: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]],
        open: OpenShapes | None = None,
        rests: Sequence[int] = [],
    ) -> None:
        """Take of each input its address and the bytes of an item, of each output the bytes, and of each slot
        addresses. The bytes of open tensors follow from their shapes. The rests are by input: the address of
        rows for behind a batch, 0 where these are zeros."""

    def add(self, capacity: int, graph: int, outputs: Sequence[int], length: int = 0) -> None:
        """Add a graph for batches of up to this size, and the addresses where it leaves its outputs."""

    def allow_padding(self) -> None:
        """Pad items to the length of a graph from now on: that changes no answers of this model."""

    def takes(self, size: int, length: int = 0) -> bool:
        """Return whether there is a graph for a batch of this size, of items of this length: in total, where
        they are packed."""

    def rehearse(self, memory: Buffer, order: bytes, times: int) -> list[bytes]:
        """Run the batch of an order so many times in a row, and return what a worker would say of it."""

    def finish(self) -> None:
        """Wait for all that the GPU was given, also for cancelled batches: the memory can go after that."""

class DeviceLost(Exception):
    """The GPU can do nothing more for this process."""

class BatchLoop:
    """A worker's loop over a connection, or in a time that a test makes."""

    @overload
    def __init__(self, memory: Buffer, socket: int) -> None: ...
    @overload
    def __init__(
        self,
        memory: Buffer,
        clock: Callable[[], int],
        receive: Callable[[], bytes],
        send: Callable[[bytes], object],
        watch: Watch,
    ) -> None: ...
    def know(
        self,
        model: int,
        table: Sequence[int],
        inputs: Sequence[tuple[str, str, Sequence[int]]],
        outputs: Sequence[tuple[str, str, Sequence[int]]],
        sources: Sequence[int],
    ) -> None:
        """Run this model here: its batches take the times in the table, by size, and hand inputs back as
        outputs. The sources say which input each output is; -1: zeros."""

    def know_graphs(self, model: int, runner: GraphRunner) -> None:
        """Run this model here, in CUDA graphs."""

    def forget(self, model: int) -> None:
        """Leave batches of this model to Python from now on."""

    def serve(self, free: int, obey: Callable[[bytes, int], bool]) -> int:
        """Hear orders and run batches until Python wants its turn, or there is nothing to do. Orders for
        Python go to obey, with when they came; it returns whether it wants its turn. Given and returned is
        when the GPU is free."""
