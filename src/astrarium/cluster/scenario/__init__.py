"""A cluster file is read and checked here: machines, apps, slowdowns, policy, live settings."""
