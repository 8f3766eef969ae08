"""The serving level batches requests with deadlines on GPUs."""
