"""Where live work runs: workers, the processes that host them, and the model backends inside."""
