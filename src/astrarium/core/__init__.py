"""All that a policy may import; imports nothing else of ours."""
