"""Models on a real GPU, behind our server and others, and what each of them does: the parts of gpu.py."""
