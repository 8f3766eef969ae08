"""Sets of workloads by name: `v100-like` is generated, `recorded` are the files in this package's folder
kernels."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from astrarium.core.errors import InputError, one_of, read_from
from astrarium_papers.kernels import v100_like
from astrarium_papers.kernels.trace import KernelTrace, parse_kernels

GENERATED = "v100-like"
RECORDED = "recorded"
SUFFIX = ".tsv"


def kernel_sets() -> list[str]:
    return [GENERATED, *([RECORDED] if recordings() else [])]


def kernel_set(name: str) -> dict[str, KernelTrace]:
    """Return workloads by the names of recordings: MODEL-inference-bN and MODEL-training-bN."""
    if name == GENERATED:
        return v100_like.traces()
    if name == RECORDED and recordings():
        return {recording: _recorded(recording) for recording in recordings()}
    raise InputError("", name, f"a set of kernels: {one_of(kernel_sets(), name)}")


def find(name: str, model: str, purpose: str) -> KernelTrace:
    """The trace of a model for `inference` or `training` in a set, whatever its batch size; `bert` finds
    bert_base, `mobilenetv2` finds mobilenet_v2."""
    fitting = _fitting(name, model, purpose)
    if len(fitting) != 1:
        known = ", ".join(kernel_set(name))
        raise InputError(f"{model}-{purpose}", None, f"one workload of the set {name}: {known}")
    return fitting[0]


def has(name: str, model: str, purpose: str) -> bool:
    return len(_fitting(name, model, purpose)) == 1


def _fitting(name: str, model: str, purpose: str) -> list[KernelTrace]:
    return [trace for key, trace in kernel_set(name).items() if _fits(key, model, purpose)]


def _fits(key: str, model: str, purpose: str) -> bool:
    recorded, what, *_ = [*key.split("-"), ""]
    return recorded.replace("_", "").startswith(model) and what == purpose


def recordings() -> list[str]:
    folder = files("astrarium_papers.kernels").joinpath("recorded")
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))


@cache
def _recorded(name: str) -> KernelTrace:
    file = files("astrarium_papers.kernels").joinpath("recorded", name + SUFFIX)
    with read_from(name + SUFFIX):
        return parse_kernels(file.read_text(encoding="utf-8").splitlines())
