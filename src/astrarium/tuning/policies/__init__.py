"""Tuning policies, one file each."""
