"""A model's tensors and its backend, as a scenario file has them: the simulator ignores both."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from astrarium.serving.live.ranges import Sizes, check_limits, sizes_of

Name = Annotated[str, msgspec.Meta(min_length=1)]
# As in serving.live.tensors, which would bring numpy along.
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "BF16", "BYTES",
]  # fmt: skip
EMULATED = "emulated"
MODEL = "model"  # the option that a backend's short form sets


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a model: the shape of one item, without the batch.

    -1 is any size, and "1..512" any of these.
    A call whose input has a number outside of `values`, or NaN or infinity where all must be `finite`, is
    refused.
    """

    name: Name
    datatype: Datatype
    shape: tuple[Any, ...]  # sizes, -1, or ranges of sizes such as 1..512
    values: tuple[Any, ...] | None = None  # the lowest number and the highest
    finite: bool = False

    def __post_init__(self) -> None:
        for place, size in enumerate(self.shape):
            sizes_of(size, f"shape[{place}]")
        check_limits(self.datatype, self.values, self.finite)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the shape with -1 in the place of every open dimension."""
        return tuple(size if isinstance(size, int) else -1 for size in self.shape)

    @property
    def ranges(self) -> tuple[Sizes | None, ...]:
        """Return the sizes that each dimension may have, where somebody said; empty where nobody did."""
        ranges = tuple(sizes_of(size, "shape") for size in self.shape)
        return ranges if any(ranges) else ()


class BackendChoice(msgspec.Struct, frozen=True):
    """A backend runs the model; the options are its own, file names absolute."""

    name: str = EMULATED
    options: dict[str, Any] = {}

    def plain(self) -> dict[str, Any]:
        short = self.options.keys() == {MODEL}
        return {self.name: self.options[MODEL] if short else dict(self.options)}
