"""A model's tensors and its backend, as a scenario file has them: the simulator ignores both."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from astrarium.core.errors import InputError
from astrarium.serving.live.ranges import check_limits

Size = Annotated[int, msgspec.Meta(ge=-1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
# As in serving.live.tensors, which would bring numpy along.
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "BF16", "BYTES",
]  # fmt: skip
EMULATED = "emulated"
MODEL = "model"  # the option that a backend's short form sets


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a model: the shape of one item, without the batch; -1 is any size.

    A call whose input has a number outside of `values`, or NaN or infinity where all must be `finite`, is
    refused.
    """

    name: Name
    datatype: Datatype
    shape: tuple[Size, ...]
    values: tuple[Any, ...] | None = None  # the lowest number and the highest
    finite: bool = False

    def __post_init__(self) -> None:
        if 0 in self.shape:
            raise InputError("shape", list(self.shape), "sizes of at least 1, or -1 for any")
        check_limits(self.datatype, self.values, self.finite)


class BackendChoice(msgspec.Struct, frozen=True):
    """A backend runs the model; the options are its own, file names absolute."""

    name: str = EMULATED
    options: dict[str, Any] = {}

    def plain(self) -> dict[str, Any]:
        short = self.options.keys() == {MODEL}
        return {self.name: self.options[MODEL] if short else dict(self.options)}
