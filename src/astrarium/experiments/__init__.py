"""Whole experiments from a scenario: one run, and the search for goodput."""
