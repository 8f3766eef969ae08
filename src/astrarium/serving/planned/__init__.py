"""A plan that runs: cells by the batching policy, the rest by worker queues."""
