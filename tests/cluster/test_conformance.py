"""Every registered cluster policy passes the conformance suite."""

from __future__ import annotations

from astrarium.cluster.policies import cluster_policies
from astrarium.testing.cluster import ClusterPolicyConformance
from tests.support.conformance import suites

globals().update(suites(ClusterPolicyConformance, [(name, {}, {}) for name in cluster_policies.names()]))
