"""A search connects to its Ray cluster, and gets a placement group there for its agents."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra

# in the environment of an app of a cluster
GROUP = "ASTRARIUM_PLACEMENT_GROUP"
NAMESPACE = "RAY_NAMESPACE"
PLACING = 60.0  # seconds for the placement group


class AgentPlacement(NamedTuple):
    """Agents have a placement *group* of Ray, with *bundles* that have a GPU; if *ours*, it is removed."""

    group: Any
    bundles: list[int]
    ours: bool


def connect(address: str | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Connect to the cluster that is named, here or in the environment; else to one on this machine."""
    ray = the_ray()
    if ray.is_initialized():
        return
    where = address or environment.get("RAY_ADDRESS") or "auto"
    options = {"namespace": environment.get(NAMESPACE), "log_to_driver": False}
    try:
        ray.init(address=where, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError) as error:
        expected = f"a Ray cluster that is running ({str(error).splitlines()[0]})"
        raise InputError("address", where, expected) from None


def agent_placement(
    gpus: int | None = None, cpus: float = 0.0, environment: Mapping[str, str] = os.environ
) -> AgentPlacement:
    """Place agents on so many GPUs, each with *cpus* beside it; all that the cluster has unless given. An app
    of a cluster of ours has a placement group already, which its environment names."""
    name = environment.get(GROUP)
    placement = _given(name) if name else _new(gpus, cpus)
    if name and gpus is not None:
        if gpus > len(placement.bundles):
            raise InputError(
                "gpus", gpus, f"at most {len(placement.bundles)}, as the placement group {name} has"
            )
        placement = placement._replace(bundles=placement.bundles[:gpus])
    return placement


def _given(name: str) -> AgentPlacement:
    util = the_ray().util
    try:
        group = util.get_placement_group(name)
    except ValueError as error:
        raise InputError(GROUP, name, f"a placement group that is there ({error})") from None
    bundles = [number for number, bundle in enumerate(group.bundle_specs) if bundle.get("GPU", 0) >= 1]
    if not bundles:
        raise InputError(GROUP, name, "a placement group with bundles that have a GPU")
    return AgentPlacement(group, bundles, ours=False)


def _new(gpus: int | None, cpus: float) -> AgentPlacement:
    ray = the_ray()
    there = int(ray.cluster_resources().get("GPU", 0))
    count = there if gpus is None else gpus
    if not 1 <= count <= there:
        raise InputError("gpus", gpus, f"1 to {there}, as many as the Ray cluster has")
    bundle = {"GPU": 1.0, **({"CPU": cpus} if cpus else {})}
    group = ray.util.placement_group([bundle] * count, strategy="PACK")
    try:
        placed = group.wait(PLACING)
    except BaseException:  # an interrupt: nobody else would remove it
        ray.util.remove_placement_group(group)
        raise
    if not placed:
        ray.util.remove_placement_group(group)
        free = int(ray.available_resources().get("GPU", 0))
        raise InputError("gpus", count, f"GPUs that are free on the Ray cluster; {free} are")
    return AgentPlacement(group, list(range(count)), ours=True)


def the_ray() -> Any:
    with from_extra("ray"):
        import ray
    return ray
