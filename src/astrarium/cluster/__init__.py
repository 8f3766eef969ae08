"""Cluster level: apps of many jobs share machines by leases on single GPUs."""
