"""Requests with deadlines, batches on GPUs."""
