"""A tuning file is read and checked here: search, space, task, policy, GPUs."""
