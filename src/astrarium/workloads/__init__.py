"""What arrives: arrival processes, trace files, the model zoo."""
