"""Optuna's samplers draw for our searches, and its objectives train in them, through this package."""
