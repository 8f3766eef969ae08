"""Trials of a search share GPUs: small ones are packed on fractions of one, long ones spread over several."""
