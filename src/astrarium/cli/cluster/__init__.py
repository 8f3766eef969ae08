"""Verbs for apps that share a cluster, simulated or live."""
