"""A training may change settings of its process; they are set back for the next one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class ProcessSetting(NamedTuple):
    get: Callable[[], Any]
    set: Callable[[Any], object]


class ProcessSettings:
    """The settings remember what this process and thread have now: a training may change it for the next."""

    def __init__(self) -> None:
        self._kept = [(setting, setting.get()) for setting in (*_of_python(), *_of_torch())]

    def set_back(self) -> None:
        """Restore the settings that have changed, and no others: some are slow to set."""
        for setting, before in self._kept:
            if setting.get() != before:
                setting.set(before)


def _of_python() -> list[ProcessSetting]:
    return [
        ProcessSetting(_folder, os.chdir),
        ProcessSetting(lambda: dict(os.environ), _set_variables),
        ProcessSetting(lambda: list(sys.path), lambda paths: sys.path.__setitem__(slice(None), paths)),
        ProcessSetting(lambda: (sys.stdout, sys.stderr), _set_streams),
    ]


def _of_torch() -> list[ProcessSetting]:
    import torch

    known: Any = torch
    cudnn = known.backends.cudnn
    precise = known.backends.cuda.matmul, cudnn, getattr(cudnn, "conv", None)
    return [
        ProcessSetting(known.get_default_dtype, known.set_default_dtype),
        ProcessSetting(_default_device, known.set_default_device),
        ProcessSetting(known.is_grad_enabled, known.set_grad_enabled),
        ProcessSetting(known.get_deterministic_debug_mode, known.set_deterministic_debug_mode),
        ProcessSetting(known.get_num_threads, known.set_num_threads),
        ProcessSetting(known.is_anomaly_enabled, known.autograd.set_detect_anomaly),
        *(_attribute(cudnn, name) for name in ("benchmark", "deterministic", "enabled")),
        ProcessSetting(_precision, known.set_float32_matmul_precision),
        *(_attribute(where, "fp32_precision") for where in precise),
    ]


def _attribute(where: Any, name: str) -> ProcessSetting:
    """Return a setting for an attribute, whose value is None where this version of PyTorch has none."""
    return ProcessSetting(lambda: getattr(where, name, None), lambda value: setattr(where, name, value))


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # the folder was deleted
        return ""


def _precision() -> str:
    """Return the precision of matrix products, which PyTorch does not tell if set in old and new ways."""
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""


def _default_device() -> Any:
    """Return the default device; None where nobody has chosen one."""
    import torch

    return getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)


def _set_variables(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _set_streams(streams: tuple[Any, Any]) -> None:
    sys.stdout, sys.stderr = streams
