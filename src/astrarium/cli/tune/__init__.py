"""Verbs for searches over hyperparameters, simulated or live."""
