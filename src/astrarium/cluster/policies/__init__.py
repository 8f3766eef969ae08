"""Cluster policies, one file each."""
