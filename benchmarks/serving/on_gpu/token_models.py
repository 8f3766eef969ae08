"""What other servers serve beside ours: the encoder of fixed length, and texts of unequal length.

Texts are padded by the code behind those servers, to a few lengths that have graphs, so the model is handed a
mask (`masked` of lengths.py): without one its answers would change by padding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from load import Template
from peers.peer import Settings

from on_gpu import lengths, models
from on_gpu.models import DIFFERENT, MODELS, infer

Item = tuple[npt.NDArray[np.integer[Any]], float]  # tokens, and the weight of a request with them
PADDED = "padded to the longest"
GROUPED = "each length by itself"


@dataclass(frozen=True, eq=False)
class TokenModel:
    name: str  # of the function that makes it, too
    code: tuple[str, str]  # the name of its file, and what is in it
    dimension: int  # of its input; -1: any
    lengths: tuple[int, ...]  # that have graphs
    masked: bool
    items: Sequence[Item]
    settings: Mapping[str, tuple[Settings, ...]]  # by server
    layers: int = 12

    def written(self, folder: Path, settings: Settings) -> tuple[Path, Path]:
        """Write what peers/apps/graphed_model.py loads, and return where."""
        batches = {
            "max_batch": settings.max_batch,
            "lengths": self.lengths,
            "masked": self.masked,
            "grouped": settings.mode == GROUPED,
        }
        file, text = self.code
        made = {"module": Path(file).stem, "function": self.name, "arguments": {"layers": self.layers}}
        (folder / file).write_text(text, encoding="utf-8")
        (folder / "served.json").write_text(json.dumps({**made, "batches": batches}), encoding="utf-8")
        return folder / file, folder / "served.json"

    def in_binary(self) -> tuple[Template, ...]:
        """Return the requests that our server gets."""
        return tuple(infer(self.name, "TOKENS", "INT64", tokens, weight) for tokens, weight in self.items)

    def in_json(self) -> tuple[Template, ...]:
        return tuple(
            Template("/predict", json.dumps({"tokens": tokens.tolist()}).encode(), weight=weight)
            for tokens, weight in self.items
        )


ENCODER = TokenModel(
    name="encoder",
    code=("models.py", models.CODE),
    dimension=128,
    lengths=(128,),
    masked=False,
    items=[(MODELS[0].item(number), 1 / DIFFERENT) for number in range(DIFFERENT)],
    settings={"litserve": (Settings(64, 2.0),), "triton": (Settings(64, 0.0),)},
)
# Texts padded to the longest go in smaller batches: of 64, one is nearly always of the greatest length.
TEXTS = TokenModel(
    name="texts",
    code=("texts.py", lengths.CODE),
    dimension=-1,
    lengths=(32, 64, 128, 256, 512),
    masked=True,
    items=lengths.items(),
    settings={
        "litserve": (Settings(16, 2.0, PADDED, 4), Settings(64, 2.0, GROUPED, 4)),
        "triton": (Settings(16, 0.0, PADDED, 2), Settings(64, 0.0, GROUPED, 2)),
    },
)
