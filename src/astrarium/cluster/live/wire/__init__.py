"""Connections to an arbiter: who may come in, how one shows a key, and how messages travel."""
