"""What HTTP and gRPC have in common."""
