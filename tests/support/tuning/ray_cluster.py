"""A Ray cluster for tests: machines with GPUs that are not there, on the loopback device."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

# On the loopback device, and without processes that nobody may need.
QUIET = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@contextmanager
def ray_cluster(gpus: Sequence[int], cpus: int = 16) -> Iterator[Any]:
    """A head without GPUs, and a machine for each number of them; connected to."""
    os.environ.update(QUIET)
    ray: Any = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    of_node = {"num_cpus": cpus, "object_store_memory": 80 * 2**20}
    head = {**of_node, "num_gpus": 0, "include_dashboard": False}
    one: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        one.each = of_node
        one.machines = [one.add_node(**of_node, num_gpus=count, wait=False) for count in gpus]
        one.wait_for_nodes()
        ray.init(address=one.address, log_to_driver=False, logging_level=logging.ERROR)
        yield one
    finally:
        ray.shutdown()
        one.shutdown()
