"""Model backends: how a worker runs a batch. One file each, by name in a scenario's `backend`."""
