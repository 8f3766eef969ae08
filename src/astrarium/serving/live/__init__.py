"""Live serving runs batches in worker processes, one for each GPU, with model backends inside."""
