"""Tensors as a scenario declares them are held against those that a model file itself names."""

from __future__ import annotations

from astrarium.core.errors import InputError, one_of
from astrarium.serving.live.tensors import TensorSpec

Specs = tuple[TensorSpec, ...]


def chosen(side: str, declared: Specs, in_model: Specs, all_needed: bool) -> Specs:
    """Return the declared tensors where there are any, else those found in the model.

    A declaration may name a fixed size where the model takes any. Every input must be there (*all_needed*);
    outputs may be left out.
    """
    if not declared:
        return in_model
    names = [spec.name for spec in in_model]
    for place, spec in enumerate(declared):
        if spec.name not in names:
            raise InputError(f"{side}[{place}].name", spec.name, f"as in the model file, {one_of(names)}")
        _check_alike(f"{side}[{place}]", spec, in_model[names.index(spec.name)])
    missing = set(names) - {spec.name for spec in declared}
    if all_needed and missing:
        raise InputError(side, [spec.name for spec in declared], f"{', '.join(sorted(missing))} as well")
    return declared


def _check_alike(field: str, spec: TensorSpec, in_model: TensorSpec) -> None:
    if spec.datatype != in_model.datatype:
        raise InputError(f"{field}.datatype", spec.datatype, f"{in_model.datatype}, as in the model file")
    if not in_model.admits(spec.shape):
        expected = f"{list(in_model.shape)}, as in the model file (without the batch)"
        raise InputError(f"{field}.shape", list(spec.shape), expected)
