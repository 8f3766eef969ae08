"""Optuna meets our searches here: its samplers draw for us, its objectives train with us."""
