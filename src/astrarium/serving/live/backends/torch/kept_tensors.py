"""A module may keep tensors between its calls, such as a table of positions, or a mask for one length.

A CUDA graph reads them where they were when it was captured, also when the module has replaced them since
and their memory would be something else's. So whoever has the graph holds them, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

_PLAIN = str, bytes, int, float, bool, type(None), type, ModuleType, FunctionType
_MOST = 20_000  # objects: a vocabulary that a module has at hand is not gone through for every graph
_COLLECTIONS = list, tuple, set, frozenset, deque


def tensors_kept(torch: Any, module: Any) -> list[Any]:
    """Return the tensors among the attributes of a module and its parts, however nested.

    Weights are not among them: they stay where they are.
    """
    if module is None:
        return []
    seen: dict[int, Any] = {}
    ahead = [*module.buffers(), *_attributes(torch, module)]
    while ahead and len(seen) < _MOST:
        one = ahead.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if not isinstance(one, torch.Tensor):
            ahead += [part for part in _parts(one) if not isinstance(part, _PLAIN)]
    tensors = [one for one in seen.values() if isinstance(one, torch.Tensor)]
    return [tensor for tensor in tensors if not isinstance(tensor, torch.nn.Parameter)]


def _attributes(torch: Any, module: Any) -> Iterator[Any]:
    """Yield what a module's code has added to what every module has: hooks, parts and weights."""
    every = vars(torch.nn.Module()).keys()
    for part in module.modules():
        yield from (value for name, value in list(vars(part).items()) if name not in every)


def _parts(one: Any) -> list[Any]:
    """Return what an object has, all at once: another thread may be calling the module."""
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, _COLLECTIONS):
        return list(one)
    return list(getattr(one, "__dict__", {}).values())
