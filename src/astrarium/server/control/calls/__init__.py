"""Calls that Python has read: let in, their tensors in shared memory, answered or refused."""
