"""Control stands between the calls of clients, the policy, and the workers."""
