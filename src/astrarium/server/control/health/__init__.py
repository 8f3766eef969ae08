"""Whether models, workers and plans are well: what was measured lately, and what follows from it."""
