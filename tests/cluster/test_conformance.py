"""Every registered cluster policy passes the conformance suite."""

from __future__ import annotations

import pytest

from astrarium.cluster.policies import Allocator, cluster_policies
from astrarium.testing.cluster import ClusterPolicyConformance


@pytest.mark.parametrize("name", cluster_policies.names(), scope="class")
class TestEveryPolicy(ClusterPolicyConformance):
    @pytest.fixture(autouse=True)
    def named(self, name: str) -> None:
        self.name = name

    def make(self) -> Allocator:
        factory = cluster_policies.get(self.name)
        return factory(factory.Parameters())  # type: ignore[attr-defined]
