"""astrarium zoo"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.options import Json
from astrarium.cli.output import emit, table
from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import to_ms

if TYPE_CHECKING:
    from astrarium.serving.zoo import ZooModel

GpuFilter = Annotated[str | None, typer.Option("--gpu", metavar="KIND", help="Only the models on this GPU.")]


def zoo(gpu: GpuFilter = None, json: Json = False) -> None:
    """List the model profiles that come along.

    The latency of a batch of b requests is alpha b + beta.
    """
    from astrarium.serving import zoo as profiles

    kinds = profiles.gpus()
    if gpu is not None and gpu not in kinds:
        raise InputError("--gpu", gpu, one_of(kinds, gpu))
    chosen = kinds if gpu is None else [gpu]
    shown = {
        kind: {name: _shown(profiles.lookup(kind, name)) for name in profiles.models(kind)} for kind in chosen
    }
    emit(json, {"gpus": shown}, [_table(shown)], None)


def _shown(model: ZooModel) -> dict[str, Any]:
    return {
        "profile": f"zoo:{model.gpu}/{model.model}",
        "alpha_ms": to_ms(model.alpha),
        "beta_ms": to_ms(model.beta),
        "slo_ms": to_ms(model.slo),
    }


def _table(shown: dict[str, dict[str, Any]]) -> Any:
    models = [model for kind in shown.values() for model in kind.values()]
    rows = [
        (model["profile"], f"{model['alpha_ms']:.3f}", f"{model['beta_ms']:.3f}", f"{model['slo_ms']:g}")
        for model in models
    ]
    return table("profile", right=("alpha ms", "beta ms", "SLO ms"), rows=rows)
