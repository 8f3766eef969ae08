"""Support for tests of workers: a world in virtual time, and a CUDA driver without a GPU."""
