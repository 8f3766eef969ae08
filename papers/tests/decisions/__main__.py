"""Writes these decisions anew, for those who change some on purpose."""

from __future__ import annotations

from papers.tests.decisions import cases
from tests.support.decisions.digests import written

print(written(cases()))
