"""The servers that are compared, ours last."""

from __future__ import annotations

from .bare import Bare
from .bentoml import BentoMl
from .litserve import LitServe
from .mlserver import MlServer
from .ours import Ours
from .peer import Peer, Running, Settings
from .pytriton import PyTriton
from .ray_serve import RayServe
from .triton import Triton

SERVERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (Triton(), PyTriton(), LitServe(), RayServe(), BentoMl(), MlServer(), Bare(), Ours())
}

__all__ = ["SERVERS", "Ours", "Peer", "Running", "Settings"]
