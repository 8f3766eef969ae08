"""Verbs that only models to be served have."""
