"""How calls and batches ended, counted by model."""
