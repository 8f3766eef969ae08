"""A worker is one process for one GPU: it loads models, and runs batches of them when it is told to."""
