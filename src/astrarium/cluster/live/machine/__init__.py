"""What runs on a machine of a live cluster: an agent, keepers, the sessions of jobs, the health of GPUs."""
