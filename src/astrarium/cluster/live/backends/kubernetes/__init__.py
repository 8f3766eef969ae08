"""Jobs run on the machines of a Kubernetes cluster."""
