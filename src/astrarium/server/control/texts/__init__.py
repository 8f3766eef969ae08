"""Texts that clients send become the tokens that a model takes."""
