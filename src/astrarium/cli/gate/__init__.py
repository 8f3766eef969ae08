"""Verbs for programs that share one GPU under the gate."""
