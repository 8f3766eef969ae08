"""Where models go: the fewest GPUs, the best plan for some, and what breaks first."""
