"""Trials run on the GPUs of a Ray cluster: one agent for each GPU, slots beside it."""
