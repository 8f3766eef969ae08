"""Tensors of PyTorch and arrays of numpy share their memory; numpy has no bfloat16 of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from astrarium.serving.live.tensors import BF16, DATATYPES, Array, TensorSpec


def writable(array: Array) -> Array:
    """Return an array that can be written, copied if need be: PyTorch has no read-only tensors."""
    return array if array.flags.writeable else array.copy()


def tensor_of(torch: Any, array: Array) -> Any:
    writable_array = writable(array)
    if array.dtype != DATATYPES[BF16]:
        return torch.from_numpy(writable_array)
    return torch.from_numpy(writable_array.view("<i2")).view(torch.bfloat16)


def array_of(torch: Any, tensor: Any) -> Array:
    """Return an array in the memory of a tensor."""
    if tensor.dtype != torch.bfloat16:
        array: Array = tensor.numpy()
        return array
    bits: Array = tensor.view(torch.int16).numpy()
    return bits.view(DATATYPES[BF16])


def portable(torch: Any, tensor: Any) -> Any:
    """Return a tensor in a type that numpy has: it has no bfloat16."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def kind(torch: Any, spec: TensorSpec) -> Any:
    """Return PyTorch's type for a tensor."""
    if spec.datatype == BF16:
        return torch.bfloat16
    return torch.from_numpy(np.empty(0, DATATYPES[spec.datatype])).dtype
