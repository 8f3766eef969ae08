"""Apps and machines that cluster studies use: traces, Themis's workloads and models."""
