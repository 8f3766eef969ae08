"""Writes the decisions of all policies anew, for those who change some on purpose."""

from __future__ import annotations

from tests.support.decisions import cases
from tests.support.decisions.digests import written

print(written(cases()))
