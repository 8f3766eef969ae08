"""A scenario file may set these parameters of Themis."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from astrarium.cluster.fairness import Definition
from astrarium.core.quantities import SECOND, Duration, check_above_zero


class ThemisParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    f: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="the worst 1 - f of the apps bid, and at least one")
    ] = 0.8
    lease: Annotated[Duration, msgspec.Meta(description="how long GPUs are leased")] = Duration(600 * SECOND)
    grid: Annotated[
        int, msgspec.Meta(ge=0, description="leases end at so many instants in a lease; 0: at any")
    ] = 4
    definition: Annotated[Definition, msgspec.Meta(description="what finish times are compared with")] = (
        "share"
    )
    leftovers: Annotated[
        Literal["chance", "worst"],
        msgspec.Meta(description="which apps outside the auction come first for what it has left over"),
    ] = "chance"
    patience: Annotated[
        int, msgspec.Meta(ge=0, description="leases that an app waits for its first gang; 0: for ever")
    ] = 6
    error: Annotated[
        float, msgspec.Meta(ge=0, lt=1, description="apps are wrong about themselves by up to so much")
    ] = 0.0
    lies: Annotated[
        dict[int, float],
        msgspec.Meta(description="by app: how much it overstates what being apart costs"),
    ] = {}
    lie_near: Annotated[
        bool, msgspec.Meta(description="liars understate what being on one machine costs instead")
    ] = False
    seed: Annotated[int, msgspec.Meta(ge=0, description="of all chance: errors, roundings, leftovers")] = 0

    def __post_init__(self) -> None:
        check_above_zero("lease", self.lease)
