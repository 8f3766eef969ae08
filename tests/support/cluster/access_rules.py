"""Who may do what on a cluster of two teams."""

from __future__ import annotations

import msgspec

from astrarium.cluster.live.access import AccessSection

ACCESS = AccessSection(
    ("alice", "@admin"), {"vision": ("bob", "carol"), "speech": ("dave", "@talk", "carol")}
)
SEEN_BY_TEAM = msgspec.structs.replace(ACCESS, status="team")
