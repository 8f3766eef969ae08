"""Conformance suites, strategies and checks that ship with the package (needs the `dev` extra: Hypothesis)."""
