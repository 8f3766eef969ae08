"""The causes of failures that metrics count; what a client is told says more."""

WORKER_LOST = "worker_lost"
MODEL_ERROR = "model_error"
POLICY_ERROR = "policy_error"
QUARANTINED = "quarantined"  # the same input has broken a worker
INPUTS = "inputs"  # they could not be made
