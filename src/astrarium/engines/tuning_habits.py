"""What a training may change in its process for whoever trains there next, and how it is set back.

Processes are kept from run to run. A candidate must not depend on who was there before it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class Habit(NamedTuple):
    get: Callable[[], Any]
    set: Callable[[Any], object]


class Habits:
    """Of this process and thread, as they are now."""

    def __init__(self) -> None:
        self._kept = [(habit, habit.get()) for habit in (*_of_python(), *_of_torch())]

    def set_back(self) -> None:
        """What has changed, and nothing else: some of it is slow to set."""
        for habit, before in self._kept:
            if habit.get() != before:
                habit.set(before)


def _of_python() -> list[Habit]:
    return [
        Habit(_folder, os.chdir),
        Habit(lambda: dict(os.environ), _set_variables),
        Habit(lambda: list(sys.path), lambda paths: sys.path.__setitem__(slice(None), paths)),
        Habit(lambda: (sys.stdout, sys.stderr), _set_streams),
    ]


def _of_torch() -> list[Habit]:
    import torch

    known: Any = torch
    cudnn = known.backends.cudnn
    precise = known.backends.cuda.matmul, cudnn, getattr(cudnn, "conv", None)
    return [
        Habit(known.get_default_dtype, known.set_default_dtype),
        Habit(_default_device, known.set_default_device),
        Habit(known.is_grad_enabled, known.set_grad_enabled),
        Habit(known.get_deterministic_debug_mode, known.set_deterministic_debug_mode),
        Habit(known.get_num_threads, known.set_num_threads),
        Habit(known.is_anomaly_enabled, known.autograd.set_detect_anomaly),
        *(_attribute(cudnn, name) for name in ("benchmark", "deterministic", "enabled")),
        Habit(_precision, known.set_float32_matmul_precision),
        *(_attribute(where, "fp32_precision") for where in precise),
    ]


def _attribute(where: Any, name: str) -> Habit:
    """None where this version of PyTorch has none."""
    return Habit(lambda: getattr(where, name, None), lambda value: setattr(where, name, value))


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted
        return ""


def _precision() -> str:
    """PyTorch refuses to tell where it was set in its old way and in its new one."""
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""


def _default_device() -> Any:
    """None: nobody has chosen one."""
    import torch

    return getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)


def _set_variables(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _set_streams(streams: tuple[Any, Any]) -> None:
    sys.stdout, sys.stderr = streams
