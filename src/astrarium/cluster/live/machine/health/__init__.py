"""The health of a machine's GPUs."""
