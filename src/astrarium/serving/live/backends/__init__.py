"""Model backends by name: ours are the files beside this one, strangers' come by entry point.

[project.entry-points."astrarium.backends"]
theirs = "their_package:TheirBackend"

Our modules import torch and onnxruntime only when a model of theirs is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrarium.core.errors import InputError
from astrarium.core.registry import Registry
from astrarium.serving.live.backends.contract import (
    BackendFactory,
    CheckingFactory,
    ModelFiles,
    PackingFactory,
)

backends: Registry[BackendFactory] = Registry(
    "model backend", package="astrarium.serving.live.backends", group="astrarium.backends"
)


def checked_options(files: ModelFiles) -> Mapping[str, Any]:
    """Return the options of a scenario's model as its backend wants them: complete, file names absolute."""
    factory = backends.get(files.backend)
    check_packs(files, factory)
    return factory.check(files) if isinstance(factory, CheckingFactory) else files.options


def check_packs(files: ModelFiles, factory: BackendFactory) -> None:
    """Refuse to pack the inputs of a model whose backend knows nothing of that, or that nobody has named."""
    if files.pack and not (isinstance(factory, PackingFactory) and factory.packs):
        raise InputError("pack", True, f"false, or a backend that takes packed inputs, not {files.backend}")
    if files.pack and not files.inputs:
        raise InputError("inputs", None, "a list of the inputs: `pack` is of those with an open dimension")


def placed(error: InputError, model: str, backend: str) -> InputError:
    """Return a backend's error as the scenario sees it: its options stand in the model's `backend`."""
    beside = error.field.split("[")[0] in ("inputs", "outputs", "pack")
    return error.at(f"models.{model}" if beside else f"models.{model}.backend.{backend}")
