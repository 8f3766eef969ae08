"""The server speaks the Open Inference Protocol over HTTP and gRPC, and tells health and metrics."""
