"""What clients talk to: the Open Inference Protocol over HTTP and gRPC, health, metrics."""
