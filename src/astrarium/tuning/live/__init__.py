"""A search runs on real GPUs here: trials are processes, on this machine or on a Ray cluster."""
