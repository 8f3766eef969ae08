"""The causes of failures that metrics count; what a client is told says more."""

WORKER_LOST, MODEL_ERROR, POLICY_ERROR = "worker_lost", "model_error", "policy_error"
QUARANTINED = "quarantined"  # the same input has broken a worker
INPUTS = "inputs"  # they could not be made
