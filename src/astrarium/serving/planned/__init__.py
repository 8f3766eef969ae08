"""A planned run runs a plan: its cells by the batching policy, the rest by worker queues."""
