"""Conformance suites, strategies and checks that ship with the package; they need Hypothesis."""
