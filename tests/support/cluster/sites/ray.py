"""A Ray cluster of two machines, as a site for the tests of all backends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.tuning.ray_cluster import ray_cluster


class RaySite:
    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._backends = list[Any]()
        self._groups = list[Any]()

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[RaySite]:
        with ray_cluster([2, 2]) as cluster:
            yield cls(cluster)

    def close(self) -> None:
        """End what a test has left, so that the next one finds two machines with nothing on them."""
        for backend in self._backends:
            backend.dismiss()
        self._backends.clear()
        for group in self._groups:
            import ray

            ray.util.remove_placement_group(group)
        self._groups.clear()
        if len(self._cluster.machines) < 2:
            self._cluster.machines.append(self._cluster.add_node(**self._cluster.each, num_gpus=2))

    def backend(self, home: Path, epoch: int = 1, grace: float = 20.0) -> Any:
        from astrarium.cluster.live.backends.ray import RayBackend

        one = RayBackend(home, grace=grace, patience=20.0)
        self._backends.append(one)
        one.enter(epoch)
        return one

    def lose(self, machine: str) -> None:
        prefix = _number(machine)
        node = next(node for node in self._cluster.machines if node.node_id.startswith(prefix))
        self._cluster.machines.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def occupy(self, machine: str, gpus: int) -> None:
        import ray

        number = next(node["NodeID"] for node in ray.nodes() if node["NodeID"].startswith(_number(machine)))
        group = ray.util.placement_group(
            [{"GPU": gpus}], strategy="PACK", bundle_label_selector=[{"ray.io/node-id": number}]
        )
        ray.get(group.ready())
        self._groups.append(group)


def _number(machine: str) -> str:
    """Signs of Ray's number of a machine, which its name ends with."""
    return machine.rpartition(".")[0].rpartition("-")[2]
