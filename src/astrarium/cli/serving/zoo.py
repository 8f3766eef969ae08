"""astrarium zoo"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.options import Json

if TYPE_CHECKING:
    from astrarium.serving.zoo import ZooModel

GpuFilter = Annotated[str | None, typer.Option("--gpu", metavar="KIND", help="Only the models on this GPU.")]


def zoo(gpu: GpuFilter = None, json: Json = False) -> None:
    """List the model profiles that come along.

    The latency of a batch of b requests is alpha b + beta.
    """
    from astrarium.cli.output import emit
    from astrarium.core.errors import InputError, one_of
    from astrarium.serving import zoo as shelf

    kinds = shelf.gpus()
    if gpu is not None and gpu not in kinds:
        raise InputError("--gpu", gpu, one_of(kinds, gpu))
    chosen = kinds if gpu is None else [gpu]
    shown = {kind: {name: _shown(shelf.lookup(kind, name)) for name in shelf.models(kind)} for kind in chosen}
    emit(json, {"gpus": shown}, [_table(shown)], None)


def _shown(model: ZooModel) -> dict[str, Any]:
    from astrarium.core.units import to_ms

    return {
        "profile": f"zoo:{model.gpu}/{model.model}",
        "alpha_ms": to_ms(model.alpha),
        "beta_ms": to_ms(model.beta),
        "slo_ms": to_ms(model.slo),
    }


def _table(shown: dict[str, dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("profile", box=None, pad_edge=False)
    for name in ("alpha ms", "beta ms", "SLO ms"):
        table.add_column(name, justify="right")
    for models in shown.values():
        for model in models.values():
            numbers = (f"{model['alpha_ms']:.3f}", f"{model['beta_ms']:.3f}", f"{model['slo_ms']:g}")
            table.add_row(model["profile"], *numbers)
    return table
