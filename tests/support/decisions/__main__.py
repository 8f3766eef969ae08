"""Writes the decisions of all policies anew, for those who change some on purpose."""

from __future__ import annotations

import json

from tests.support.decisions import cases

found: dict[str, str] = {}
for case in cases():
    found |= case.digests()
print(json.dumps(found, indent=1, sort_keys=True))
