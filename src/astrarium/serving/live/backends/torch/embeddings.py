"""Inputs that index an embedding are found out by a trial run, so that no call can index beyond it.

An index that an embedding does not have is an assert on a GPU, after which no model of that process answers
any more. The trial run follows each input through what only copies or rearranges its elements (casts, views,
slices) to where it is an embedding's index. An input that is changed on its way (clamped, shifted) limits
itself, or means something that nobody can tell from outside, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from astrarium.serving.live import limits
from astrarium.serving.live.backends import examples
from astrarium.serving.live.backends.contract import package
from astrarium.serving.live.backends.torch.programs import Program
from astrarium.serving.live.ranges import RANGES
from astrarium.serving.live.tensors import DATATYPES, Array, TensorSpec

_LENGTH = 8  # of open dimensions
_ROWS = 2
# Operators of PyTorch that take the same elements somewhere else.
_COPYING = frozenset([
    "_to_copy", "to", "clone", "detach", "alias", "lift_fresh", "contiguous", "view", "_unsafe_view", "flip",
    "_reshape_alias", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "permute", "transpose", "t",
    "movedim", "select", "slice", "narrow", "unbind", "split", "split_with_sizes", "unsafe_split", "chunk",
    "unsafe_split_with_sizes", "repeat", "roll", "reshape",
])  # fmt: skip
_EMBEDDINGS = frozenset(["embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"])


class Limited(NamedTuple):
    """Inputs with the limits that a trial run found, and what people are told of them.

    What is stated holds for clients, even where it is more than an embedding has; `example_inputs` have what
    made-up inputs may be, so that at least we do not break the model.
    """

    inputs: tuple[TensorSpec, ...]
    example_inputs: tuple[TensorSpec, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def limited(torch: Any, program: Program, tensor_of: Callable[[Array], Any]) -> Limited:
    """Return the inputs with the range of each that indexes an embedding; stated ranges stay as they are."""
    if not any(DATATYPES[spec.datatype].kind in "iu" for spec in program.inputs):
        return Limited(program.inputs, program.inputs)
    return described(program.inputs, indexed_rows(torch, program, tensor_of))


def described(inputs: Sequence[TensorSpec], rows: Sequence[int | None]) -> Limited:
    """Return inputs limited by the *rows* of what each indexes."""
    stated = []
    safe = []
    notes = list[str]()
    warnings = list[str]()
    for spec, count in zip(inputs, rows, strict=True):
        limited_by_rows = spec if count is None else _within_rows(spec, count)
        safe.append(limited_by_rows)
        stated.append(limited_by_rows if spec.values is None else spec)
        if count is not None and limited_by_rows.values != spec.values:
            (notes if spec.values is None else warnings).append(_limit_note(spec, limited_by_rows, count))
    return Limited(tuple(stated), tuple(safe), tuple(notes), tuple(warnings))


def _within_rows(spec: TensorSpec, count: int) -> TensorSpec:
    """Return the input with those of its values that are rows; those of a range without any stay."""
    low, high = spec.values or RANGES[spec.datatype]
    rows = max(0, low), min(count - 1, high)
    return replace(spec, values=rows) if rows[0] <= rows[1] else spec


def _limit_note(spec: TensorSpec, limited_spec: TensorSpec, count: int) -> str:
    because = f"as an embedding of {count} rows is indexed with it"
    if spec.values is None:
        return f"input {spec.name} takes {limits.expected(limited_spec)}, {because}"
    return (
        f"input {spec.name} takes {limits.expected(spec)}: expected no more than 0 to {count - 1}, {because}"
    )


def indexed_rows(torch: Any, program: Program, tensor_of: Callable[[Array], Any]) -> list[int | None]:
    """Return the rows of the smallest embedding that each input indexes, or None where it indexes none.

    A model that the trial run breaks is left to the runs after it, which say why it cannot be loaded.
    """
    careful = [_near_zero(spec) for spec in examples.with_lengths(program.inputs, examples.nearest(_LENGTH))]
    batch = examples.batch(careful, _ROWS, np.random.default_rng(0))
    tensors = [tensor_of(array) for array in batch.inputs.values()]
    rows: list[int | None] = [None] * len(tensors)
    try:
        with torch.no_grad(), _following(tensors, rows):
            (program.eager or program.call)(*tensors)
    except Exception:
        return [None] * len(tensors)
    return rows


def prepare(torch: Any) -> None:
    """Let PyTorch import now what following an operator needs: seconds, in some of its versions."""
    with torch.no_grad(), _following([], []):
        torch.zeros(1) + 1


def _near_zero(spec: TensorSpec) -> TensorSpec:
    """Return an input that takes 0 and 1 only, or what is nearest: more may be stated than there is."""
    if spec.values is None:
        return spec
    low, high = spec.values
    return replace(spec, values=(min(max(0, low), high), min(max(1, low), high)))


def _following(tensors: Sequence[Any], rows_of: list[int | None]) -> Any:
    """Return a mode of PyTorch that sees every operator, and notes in *rows_of* what each tensor indexes."""
    mode = package("torch.utils._python_dispatch", "torch").TorchDispatchMode
    origins = {id(tensor): (tensor, at) for at, tensor in enumerate(tensors)}  # held: an id is used again

    class Following(mode):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(
            self, operator: Any, types: Any, arguments: Any = (), named: Any = None
        ) -> Any:
            answer = operator(*arguments, **(named or {}))
            name = operator.overloadpacket.__name__
            if name in _EMBEDDINGS:
                note(arguments[0].shape[0], arguments[1])
            elif name in _COPYING:
                follow(arguments[0], answer)
            return answer

    def note(rows: int, indices: Any) -> None:
        _, at = origins.get(id(indices), (None, None))
        if at is not None:
            rows_of[at] = min(rows, rows_of[at] or rows)

    def follow(source: Any, answer: Any) -> None:
        if id(source) in origins:
            for one in answer if isinstance(answer, list | tuple) else (answer,):
                origins[id(one)] = one, origins[id(source)][1]

    return Following()
