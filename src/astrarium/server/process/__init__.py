"""The server's process: signals, what its machine must have, descriptors, logs."""
