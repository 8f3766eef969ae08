"""The parts that stand between the calls of clients, the native scheduler and the workers."""
